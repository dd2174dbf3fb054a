"""The papers whose theorems, tables and figures are carried out here, cited in full.

Everywhere else they go by their short names: in text ("cpfed, Theorem 1", "dpnfl's Lemma 2"), as recipes
("dpnfl/table2"), noise rules and choices of a command. Other works are cited where they are used, by authors and year.

>>> CITATIONS["cpfed"].short
'Hu et al. 2020'
"""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Paper:
    """A publication; what is not known for certain is None."""

    name: str  # by which it goes here
    authors: tuple[str, ...]
    title: str
    venue: str | None = None
    year: int | None = None
    doi: str | None = None

    @property
    def short(self) -> str:
        """Authors and year."""
        family = self.authors[0].split()[-1]
        return f"{family} et al." + ("" if self.year is None else f" {self.year}")

    def __str__(self) -> str:
        parts = (self.venue, self.year, self.doi and f"doi {self.doi}")
        place = ", ".join(str(part) for part in parts if part is not None)
        return f"{', '.join(self.authors)}: {self.title}." + (f" {place}." if place else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self) | {"short": self.short, "citation": str(self)}


CITATIONS = {
    paper.name: paper
    for paper in (
        Paper(
            "dpnfl",
            ("Lin Chen", "Xiaofeng Ding", "Zhifeng Bao", "Pan Zhou", "Hai Jin"),
            "Differentially Private Federated Learning on Non-iid Data: Convergence Analysis and Adaptive Optimization",
            "IEEE Transactions on Knowledge and Data Engineering",
            2024,
            "10.1109/TKDE.2024.3379001",
        ),
        Paper(
            "rfedavg",
            (
                "Yansheng Wang",
                "Yongxin Tong",
                "Zimu Zhou",
                "Ruisheng Zhang",
                "Sinno Jialin Pan",
                "Lixin Fan",
                "Qiang Yang",
            ),
            "Distribution-Regularized Federated Learning on Non-IID Data",
        ),
        Paper(
            "cpfed",
            ("Rui Hu", "Yanmin Gong", "Yuanxiong Guo"),
            "CPFed: Communication-Efficient and Privacy-Preserving Federated Learning",
            "arXiv:2003.13761",
            2020,
        ),
        Paper(
            "acs_pldp",
            ("Yizhou Chen", "Wangjie Xu", "Xincheng Wu", "Meng Zhang", "Bing Luo"),
            "Personalized Local Differentially Private Federated Learning with Adaptive Client Sampling",
        ),
        Paper(
            "dp_fedavg_output",
            ("Yiwei Li", "Shuai Wang", "Qilong Wu"),
            "Convergence Analysis for Differentially Private Federated Averaging in Heterogeneous Settings",
            "Mathematics 13(3), 497",
            2025,
            "10.3390/math13030497",
        ),
        Paper(
            "mr_mtl",
            ("Ziyu Liu", "Shengyuan Hu", "Zhiwei Steven Wu", "Virginia Smith"),
            "On Privacy and Personalization in Cross-Silo Federated Learning",
            "Advances in Neural Information Processing Systems 35, arXiv:2206.07902",
            2022,
        ),
    )
}


def markdown() -> str:
    """All papers as a list, as the README shows it."""
    return "\n".join(f"* `{paper.name}`: {paper}" for paper in CITATIONS.values())
