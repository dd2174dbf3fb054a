"""The model of a GPU's kernels: what they read, write and compute, and how far off measured times it is."""

import json
import pathlib
import tarfile

import pytest
from forecast import kernels
from forecast.program_text import FREE, Program
from helpers import benchmark

BENCHMARKS = pathlib.Path(__file__).parent.parent.parent / "benchmarks"
RESULTS = BENCHMARKS / "results"


def result_of(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def programs():
    with tarfile.open(RESULTS / "h200" / "programs.tar.xz") as archive:
        return {pathlib.Path(one.name).stem: archive.extractfile(one).read().decode() for one in archive}


def off(text, measured):
    """By which share of the measured milliseconds a prediction is off."""
    return sum(kernels.traffic(Program(text)).times_ms.values()) / measured - 1


def profiled():
    """Rows by the name of their program."""
    names = {"ours": "", "non_private": "_non_private"}
    return {f"{row['name']}_{row['cohort']}{names[row['variant']]}": row for row in result_of("h200/profile")}


def test_predictions_are_as_near_to_measured_rounds_as_they_say(programs):
    fitted = {name: abs(off(programs[name], row["ms"])) for name, row in profiled().items()}
    others = {f"{row['name']}_{row['cohort']}": row["ours_ms"] for row in result_of("h200/rounds_in_turns")}
    rest = [abs(off(text, others[name])) for name, text in programs.items() if name not in fitted]
    assert (len(fitted), len(rest)) == (7, 4)
    assert kernels.PROFILED_WITHIN - 0.01 < max(fitted.values()) <= kernels.PROFILED_WITHIN
    assert kernels.OTHERS_WITHIN - 0.01 < max(rest) <= kernels.OTHERS_WITHIN


def test_launches_are_those_that_the_profiler_saw(programs):
    for name, row in profiled().items():
        launched = sum(times for operation, times, _ in Program(programs[name]).run() if operation.kind not in FREE)
        assert 0.9 < launched / row["launches"] < 1.05, name


def test_predictions_for_the_rounds_of_today_are_as_near():
    rows = result_of("compiled")["rounds"]
    measured = [row for row in rows if row["measured_ms"]]
    assert len(measured) == len(list(benchmark("h200").in_turns()))
    assert max(abs(row["predicted_ms"] / row["measured_ms"] - 1) for row in measured) <= kernels.OTHERS_WITHIN
    assert not any(row["predicted_ms"] for row in rows if row["target"] != "h200" or row["devices"] > 1)


def kernel(lines, kind="kLoop", result="f32[1000,8]"):
    """Of a program of one fusion, whose operations are these lines."""
    shapes = [line.split(" = ")[1].split("{")[0].split(" ")[0] for line in lines if "parameter" in line]
    declared = "\n".join(f"  %a{n} = {shape} parameter({n})" for n, shape in enumerate(shapes))
    names = ", ".join(f"%a{n}" for n in range(len(shapes)))
    text = "%fused (p: f32[]) -> f32[] {\n" + "\n".join(f"  {line}" for line in lines)
    text += f"\n}}\n\nENTRY %main (a: f32[]) -> f32[] {{\n{declared}\n"
    text += f"  ROOT %k = {result} fusion({names}), kind={kind}, calls=%fused\n}}\n"
    program = Program(text, 0)
    return kernels.kernel_of(program, program.operations["k"])


ROWS, PLACES = "%x = f32[1000,8]{1,0} parameter(0)", "%i = s32[10]{0} parameter(1)"
READS = {  # lines of a kernel, its result, bytes read and written
    "all of it": ([ROWS, "ROOT %y = f32[1000,8]{1,0} negate(%x)"], "f32[1000,8]", 32_000, 32_000),
    "twice, and read once": ([ROWS, "ROOT %y = f32[1000,8]{1,0} add(%x, %x)"], "f32[1000,8]", 32_000, 32_000),
    "a slice": ([ROWS, "ROOT %y = f32[10,8]{1,0} slice(%x), slice={[0:10], [0:8]}"], "f32[10,8]", 320, 320),
    "rows of their places": (
        [ROWS, PLACES, "%g = f32[10,8]{1,0} gather(%x, %i)", "ROOT %y = f32[10,8]{1,0} negate(%g)"],
        "f32[10,8]",
        320 + 40,
        320,
    ),
    "an update in place": (
        [
            ROWS,
            "%u = f32[1,8]{1,0} parameter(1)",
            "%n = s32[] parameter(2)",
            "ROOT %y = f32[1000,8]{1,0} dynamic-update-slice(%x, %u, %n, %n)",
        ],
        "f32[1000,8]",
        32 + 4,
        32,
    ),
    "a slice of a sum": (
        [
            ROWS,
            "%z = f32[] constant(0)",
            "%r = f32[1000]{0} reduce(%x, %z), dimensions={1}, to_apply=%sum",
            "ROOT %y = f32[10]{0} slice(%r), slice={[0:10]}",
        ],
        "f32[10]",
        320,
        40,
    ),
}


@pytest.mark.parametrize("what", READS)
def test_a_kernel_reads_what_its_results_need(what):
    lines, result, read, written = READS[what]
    found = kernel(lines, result=result)
    assert (sum(found.read.values()), found.written) == (read, written)


def test_products_are_counted_in_fusions_and_in_calls_of_a_library():
    dims = "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
    left, right = "%x = f32[5,16,64]{2,1,0} parameter(0)", "%w = f32[5,64,32]{2,1,0} parameter(1)"
    exact = ", operand_precision={highest,highest}"
    for more, is_exact in (("", False), (exact, True)):
        line = f"ROOT %y = f32[5,16,32]{{2,1,0}} dot(%x, %w), {dims}{more}"
        found = kernel([left, right, line], result="f32[5,16,32]")
        assert found.products == [kernels.Product(5, 16, 32, 64, is_exact)]
        assert found.bytes == 4 * 5 * (16 * 64 + 64 * 32 + 16 * 32)
    result = "(f32[5,16,32]{2,1,0}, s8[4194304]{0})"
    config = '{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"]}'
    call = f'{result} custom-call(%x, %w), custom_call_target="__cublas$gemm", backend_config={config}'
    text = f"ENTRY %main (a: f32[]) -> f32[] {{\n  {left}\n  {right}\n  ROOT %y = {call}\n}}\n"
    program = Program(text, 0)
    found = kernels.kernel_of(program, program.operations["y"])
    assert found.products == [kernels.Product(5, 16, 32, 64, False)]
    assert found.written == 4 * 5 * 16 * 32


def test_a_kernel_takes_at_least_what_its_slowest_part_takes_and_less_than_all_one_after_another():
    found = kernel([ROWS, "ROOT %y = f32[1000,8]{1,0} negate(%x)"])
    found.written, found.normals = 4.1e9, 1.8e8  # a millisecond each
    parts = found.parts
    assert parts["memory"] == pytest.approx(1000, rel=1e-4)
    assert parts["normals"] == pytest.approx(1000)
    assert 1000 < kernels._norm(*parts.values()) < 1300
    assert sum(parts.values()) > 2000


def test_the_guard_holds_predictions_to_measurements():
    guard = benchmark("compiled")
    wanted = {"launches": 100, "predicted_ms": 1.0}
    same = {"launches": 101, "predicted_ms": 1.04}
    assert guard.differences("W1", same, wanted, 1.2) == []
    assert guard.differences("W1", {"launches": 103, "predicted_ms": 1.0}, wanted, None) == [
        "W1: launches 103, expected 100"
    ]
    for slower in (1.06, 0.94):
        (line,) = guard.differences("W1", same | {"predicted_ms": slower}, wanted, None)
        assert line == f"W1: predicted_ms {slower}, expected 1"
    assert guard.differences("W1", same, wanted, 0.7) == ["W1: predicted 1.04 ms, measured 0.7"]
    assert guard.differences("on a TPU", {"predicted_ms": None}, {"predicted_ms": None}, None) == []


UPDATE = """
%draws (p: f32[8192]) -> f32[8192] {
  %p = f32[8192]{0} parameter(0)
BITS
  ROOT %log.1 = f32[8192]{0} log(%p)
}

%copies (q: f32[8192]) -> f32[8192] {
  %q = f32[8192]{0} parameter(0)
  ROOT %c = f32[8192]{0} negate(%q)
}

ENTRY %main (a: f32[8192]) -> f32[8192] {
  %a = f32[8192]{0} parameter(0)
  %d = f32[8,8]{1,0} dot(%a, %a), operand_precision={highest,highest}, metadata={op_name="step/local_step/dot"}
  %e = f32[8,8]{1,0} dot(%a, %a), operand_precision={highest,highest}, metadata={op_name="aggregation/dot"}
  %f = f32[8,8]{1,0} dot(%a, %a), metadata={op_name="step/local_step/dot"}
  %loop_negate = f32[8192]{0} fusion(%a), kind=kLoop, calls=%copies
  ROOT %loop_add.1 = f32[8192]{0} fusion(%loop_negate), kind=kLoop, calls=%draws
}
""".replace("BITS", "\n".join(f"  %x{n} = f32[8192]{{0}} xor(%p, %p)" for n in range(20)))
CODE = """.visible .entry NAME(
\t.param .u64 .ptr .align 16 NAME_param_0
)
.reqntid 128
{
\t.reg .b32 \t%r<9>;
\tld.global.nc.v4.b32 \t{%r1, %r2, %r3, %r4}, [%rd1];
\t@%p1 bra \t$L__BB0_2;
\tld.global.b32 \t%r5, [%rd2];
\tst.global.v4.b32 \t[%rd3], {%r1, %r2, %r3, %r4};
\tst.global.b32 \t[%rd4], %r5;
\tst.global.v2.b32 \t[%rd4], {%r5, %r6};
\tret;

}
"""


def test_the_code_of_the_update_is_that_of_the_kernel_that_draws(tmp_path):
    guard = benchmark("compiled")
    assert guard.exact_products(UPDATE) == 1
    for name in ("loop_negate", "loop_add_1"):
        (tmp_path / f"{name}.ptx").write_text(CODE.replace("NAME", name))
    code = guard.kernels_in(tmp_path)
    assert set(code) == {"loop_negate", "loop_add_1"}
    found = {"wide_loads": 1, "narrow_stores": 2, "update_instructions": 7}
    assert guard.update_of(UPDATE, code) == found
    assert guard.update_of(UPDATE, code | {"loop_negate": ""}) == found
    assert guard.update_of(UPDATE, {}) == {}
