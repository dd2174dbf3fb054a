"""Tables of clients: one file each or a column, what becomes a feature, constants, categories, and what is refused."""

import bz2
import gzip
import io
import json
import lzma
import pathlib
import zipfile

import numpy as np
import pandas as pd
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp.data import files, load
from fedjax_dp.experiments import config
from fedjax_dp.tools import cli

DRAWS = np.random.default_rng(0)


def hospital(records=24, **changes):
    """Records of one hospital: two columns of numbers, one of words, labels."""
    columns = {"age": DRAWS.uniform(20, 90, records), "dose": DRAWS.normal(size=records), "stage": list("ABC") * 8}
    columns |= {"sick": DRAWS.permutation([0, 1] * (records // 2))}
    return pd.DataFrame({name: column for name, column in (columns | changes).items() if column is not None})


WORDS = {"label_column": "sick", "drop": "stage"}


@pytest.fixture(autouse=True)
def hospitals(tmp_path, monkeypatch):
    """Three files beside one another, each of one hospital, here."""
    monkeypatch.chdir(tmp_path)
    frames = {f"hospital_{number}": hospital() for number in range(3)}
    for name, frame in frames.items():
        frame.to_csv(f"{name}.csv", index=False)
        frame.to_parquet(f"{name}.parquet")
    return frames


def rows_of(dataset):
    return np.sort(np.concatenate([dataset.x_train, dataset.x_test]), axis=0)


# Which files.


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("named", ["hospital_0.{0},hospital_1.{0},hospital_2.{0}", "hospital_*.{0}", "."])
def test_each_file_is_a_client_by_its_name(kind, named, hospitals):
    found = load(f"{kind}:{named.format(kind)}", **WORDS)
    assert np.unique(found.client_ids).tolist() == sorted(hospitals)
    for name, frame in hospitals.items():
        both = [found.x_train[found.client_ids == name], found.x_test[found.test_client_ids == name]]
        expected = np.sort(frame[["age", "dose"]].to_numpy(np.float32), axis=0)
        np.testing.assert_array_equal(np.sort(np.concatenate(both), axis=0), expected)
    assert found.name == (pathlib.Path.cwd().name if named == "." else "hospital")


def test_files_are_the_same_clients_as_a_column(hospitals):
    pd.concat([frame.assign(who=name) for name, frame in hospitals.items()]).to_csv("all.csv", index=False)
    apart, together = load("csv:hospital_*.csv", **WORDS), load("csv:all.csv", client_column="who", **WORDS)
    for left, right in zip(apart[1:5], together[1:5], strict=True):
        np.testing.assert_array_equal(left, right)
    assert apart.client_ids.tolist() == together.client_ids.tolist()


def test_a_column_of_clients_may_stand_in_several_files(hospitals):
    for number, frame in enumerate(hospitals.values()):
        frame.assign(who=np.repeat([2 * number, 2 * number + 1], 12)).to_csv(f"part_{number}.csv", index=False)
    found = load("csv:part_*.csv", client_column="who", **WORDS)
    assert np.unique(found.client_ids).tolist() == list(range(6))
    told = refusal(load, "csv:part_0.csv,copy.csv", client_column="who", **WORDS)
    assert "copy.csv" in told
    pathlib.Path("copy.csv").write_text(pathlib.Path("part_0.csv").read_text())
    told = refusal(load, "csv:part_0.csv,copy.csv", client_column="who", **WORDS)
    assert told.startswith("clients must be each in one file, got 0 in part_0.csv and copy.csv")


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(hospitals):
    hospitals["hospital_0"].to_csv("a,[b]*.csv", index=False)
    assert load("csv:a,[b]*.csv", **WORDS).client_ids is None


def test_what_names_no_tables_is_one_line(hospitals):
    pathlib.Path("empty").mkdir()
    pathlib.Path("empty/notes.txt").write_text("none here")
    pathlib.Path("other").mkdir()
    pathlib.Path("other/hospital_0.csv").write_text(pathlib.Path("hospital_1.csv").read_text())
    pathlib.Path("hospital_9.csv").write_text("")
    for named, words in {
        "empty": "files that end in .csv or .csv.gz, got no table in it",
        "ward_*.csv": "files must be existing ones, got ward_*.csv",
        "hospital_0.csv,hospital_7.csv": "csv file must be an existing file, got hospital_7.csv",
        "hospital_0.csv,hospital_0.csv": "files must be different ones, got hospital_0.csv twice",
        "hospital_0.csv,other/hospital_0.csv": "names of files must be different",
        "hospital_*.csv": "hospital_9.csv must be a csv file, got empty",
    }.items():
        assert words in refusal(load, f"csv:{named}", **WORDS)


def test_files_of_other_columns_are_named(hospitals):
    hospital(weight=1.0).to_csv("hospital_3.csv", index=False)
    told = refusal(load, "csv:hospital_*.csv", **WORDS)
    assert told.startswith("hospital_3.csv: columns must be those of hospital_0.csv, got weight besides")
    assert load("csv:hospital_*.csv", label_column="sick", drop="stage,weight").x_train.shape[1] == 2
    hospital(dose=None).to_csv("hospital_3.csv", index=False)
    assert "got no dose; --drop dose leaves it out" in refusal(load, "csv:hospital_*.csv", **WORDS)
    hospital()[["sick", "stage", "dose", "age"]].to_csv("hospital_3.csv", index=False)
    assert load("csv:hospital_*.csv", **WORDS).x_train.shape[1] == 2  # by name, in whatever order


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zip"])
def test_packed_files_grow_as_far_as_they_may(ending, monkeypatch):
    monkeypatch.setattr(files, "FREE", 1 << 16)
    plain = pathlib.Path("hospital_0.csv").read_bytes()

    def packed(content):
        if ending == "zip":
            held = io.BytesIO()
            with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("a.csv", content)
            return held.getvalue()
        return {"gz": gzip, "bz2": bz2, "xz": lzma}[ending].compress(content)

    path = pathlib.Path(f"one.csv.{ending}")
    path.write_bytes(packed(plain))
    np.testing.assert_array_equal(load(f"csv:{path}", **WORDS).x_train, load("csv:hospital_0.csv", **WORDS).x_train)
    path.write_bytes(packed(plain)[:-30])
    assert "damaged" in refusal(load, f"csv:{path}", **WORDS)
    if ending == "xz":  # the first of two files is not all
        path.write_bytes(packed(plain) * 2)
        assert "more bytes after its end" in refusal(load, f"csv:{path}", **WORDS)
    path.write_bytes(packed(plain[:60] + b"0" * (1 << 20)))
    assert "times as large when expanded" in refusal(load, f"csv:{path}", **WORDS)


# What becomes a feature, and what is said of it.


def notes_of(frame, **words):
    return list(fdp.dataset(frame, **({"label": "sick", "drop": ["stage"]} | words)).notes)


def warned(notes):
    return [note for note in notes if note.startswith("warning")]


def test_features_are_told_by_name():
    assert "features: age, dose" in notes_of(hospital())
    notes = notes_of(hospital(), drop=None, categories={"stage": ["A", "B", "C"]})
    assert "features: age, dose, stage (3 categories)" in notes
    assert not warned(notes)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("id", DRAWS.integers(0, 2, 24)),
        ("patient_id", DRAWS.normal(size=24)),
        ("patientId", DRAWS.normal(size=24)),
        ("Unnamed: 0", DRAWS.normal(size=24)),
        ("seen", DRAWS.permutation(24)),
        ("seen", DRAWS.permutation(24) + 0.0),
        ("time", np.cumsum(DRAWS.uniform(size=24))),
        ("time", -np.cumsum(DRAWS.uniform(size=24))),
    ],
)
def test_columns_that_look_like_ids_are_named(name, values):
    (told,) = warned(notes_of(hospital(**{name: values})))
    assert told.startswith(f"warning: {name} looks like an id, ")
    assert told.endswith(f"drop=[{name!r}] leaves it out")
    assert not warned(notes_of(hospital(**{name: values}), drop=["stage", name]))


def test_other_columns_are_not():
    more = {"width": DRAWS.normal(size=24), "count": DRAWS.integers(0, 9, 24), "fluid": DRAWS.normal(size=24)}
    assert not warned(notes_of(hospital(**more)))


def test_a_row_number_of_each_client_looks_like_an_id(hospitals, capsys):
    for name, frame in hospitals.items():
        frame.assign(visit=np.arange(24)).to_csv(f"{name}.csv", index=False)
    words = ["--label-column", "sick", "--drop", "stage"]
    assert cli.main(["data", "csv:hospital_*.csv", *words]) == 0
    said = capsys.readouterr().err
    assert "warning: visit looks like an id, as it goes one way from row to row: --drop visit leaves it out" in said
    assert "features: age, dose, visit" in said
    assert "clients are those of the files (partition natural)" in said


def test_sizes_far_apart_are_told_by_name():
    frame = hospital(pay=DRAWS.normal(size=24) * 1e6)
    (told,) = warned(notes_of(frame))
    assert "pay within" in told
    assert "divide each by a public bound" in told
    assert not warned(notes_of(frame, standardise={"pay": (0, 1e6), "age": (50, 20)}))
    assert not warned(notes_of(hospital(pay=0.0)))


# Constants.


def test_public_constants_stand_in_options_in_a_file_or_follow_from_a_public_table(hospitals):
    plain = load("csv:hospital_*.csv", **WORDS)
    pathlib.Path("public.csv").write_text("column,mean,std\nage,50,20\ndose,0,2\n")
    public = hospital(stage=None)
    public.to_csv("survey.csv", index=False)
    own = [(public[name].mean(), public[name].std(ddof=0)) for name in ("age", "dose")]
    for how, constants in (
        ("age=50:20,dose=0:2", [(50, 20), (0, 2)]),
        ("age=50:20", [(50, 20), (0, 1)]),
        ("public.csv", [(50, 20), (0, 2)]),
        ("survey.csv", own),
    ):
        found = load("csv:hospital_*.csv", standardise=how, **WORDS)
        means, deviations = np.array(constants).T
        np.testing.assert_allclose(found.x_train, (plain.x_train - means) / deviations, rtol=1e-4, atol=1e-5)
        assert found.learnt == ()
        assert any("taken for public" in note for note in found.notes)


def test_constants_of_the_records_are_told_in_the_guarantee(hospitals):
    found = load("csv:hospital_*.csv", standardise="records", **WORDS)
    np.testing.assert_allclose(found.x_train.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(found.x_train.std(0), 1, atol=1e-6)
    algorithm = fdp.dpnfl(
        cohort_size=3, batch_size=5, local_steps=1, learning_rate=0.1, clip_norm=1.0, noise_multiplier=2.0
    )
    line = "epsilon does not cover what the features were made with: means and deviations of 2 columns"
    for made, count in ((found, 1), (load("csv:hospital_*.csv", standardise="age=50:20", **WORDS), 0)):
        data = fdp.federate(made, fdp.data.natural(made.client_ids))
        warnings = fdp.guarantee(algorithm, data, rounds=1, delta=1e-2).warnings
        assert sum(one.startswith(line) for one in warnings) == sum("deviations" in one for one in warnings) == count


@pytest.mark.parametrize("rows", ["all", "training"])
def test_constants_of_the_records_are_learnt_whatever_they_are_called(rows):
    frame = hospital(stage=None, split=["train"] * 18 + ["test"] * 6)
    own = (frame if rows == "all" else frame[:18])[["age", "dose"]]
    own.sample(frac=1, random_state=0).to_csv("survey.csv", index=False)
    frame.to_csv("a.csv", index=False)
    constants = [{name: (own[name].mean(), own[name].std(ddof=ddof)) for name in own} for ddof in (0, 1)]
    by_records = [fdp.dataset(frame, label="sick", standardise=how).learnt for how in (own, own.copy(), *constants)]
    by_records.append(load("csv:a.csv", label_column="sick", standardise="survey.csv").learnt)
    assert {*by_records} == {fdp.dataset(frame, label="sick", standardise="records").learnt} != {()}
    others = own.assign(age=own.age + 1e-3), own.assign(age=[*own.age[:-1] * 1.01, own.age.iloc[-1]])
    assert not any(fdp.dataset(frame, label="sick", standardise=how).learnt for how in others)


def test_categories_are_those_that_are_stated(hospitals):
    found = load("csv:hospital_0.csv", label_column="sick", categories="stage=C|A|B|D")
    assert found.x_train.shape[1] == 6
    hot = rows_of(found)[:, 2:].sum(0)
    assert hot.tolist() == [8, 8, 8, 0]
    told = refusal(load, "csv:hospital_*.csv", label_column="sick", categories="stage=A|B")
    assert told.startswith("hospital_0.csv: column stage must be one of A, B, got 'C' in row 3")
    numbered = fdp.dataset(hospital(stage=[1.0, 2.0] * 12), label="sick", categories={"stage": [1, 2]})
    assert rows_of(numbered)[:, 2:].sum(0).tolist() == [12, 12]


def test_missing_values_are_a_stated_constant():
    frame = hospital(age=[None, 50.0] * 12, stage=[None, "A"] * 12)
    frame.to_csv("a.csv", index=False)
    words = {"label_column": "sick", "categories": "stage=A|unknown"}
    assert "--fill age=NUMBER states a constant" in refusal(load, "csv:a.csv", **words)
    assert "--fill stage=WORD states a constant" in refusal(load, "csv:a.csv", fill="7", **words)
    found = rows_of(load("csv:a.csv", fill="age=7,stage=unknown", **words))
    assert found[:, 0].tolist() == [7] * 12 + [50] * 12
    assert found[:, 2:].sum(0).tolist() == [12, 12]
    made = fdp.dataset(frame, label="sick", drop=["stage"], fill=7)
    assert rows_of(made)[:, 0].tolist() == [7] * 12 + [50] * 12


def test_columns_of_any_kind_are_filled():
    """Nullable ones of pandas, and names that are no text."""
    frame = hospital(age=pd.array([None, 50] * 12, dtype="Int64"), stage=pd.array([None, "A"] * 12, dtype="string"))
    found = fdp.dataset(frame, label="sick", categories={"stage": ["A", "B"]}, fill={"age": 7.5, "stage": "B"})
    assert rows_of(found)[:, 0].tolist() == [7.5] * 12 + [50] * 12
    assert rows_of(found)[:, 2:].sum(0).tolist() == [12, 12]
    plain = hospital(stage=None, age=[None, 50.0] * 12).rename(columns={"age": 0, "dose": 1})
    assert rows_of(fdp.dataset(plain, label="sick", fill={0: 7})).shape == (24, 2)


def test_names_of_columns_move_no_cursor():
    assert "features: age, '\\x1b[2Jdose'" in notes_of(hospital().rename(columns={"dose": "\x1b[2Jdose"}))


def test_a_fill_that_is_no_category_is_refused_by_its_own_name():
    """It is the option that is wrong and no row, be anything missing or not."""
    options = {"label": "sick", "categories": {"stage": ["A", "B", "C"]}, "fill": {"stage": "unknown"}}
    wanted = "fill of stage must be one of A, B, C, the categories of stage, got 'unknown'; add it to the categories"
    for frame in (hospital(), hospital(stage=[None, "A"] * 12)):
        assert refusal(fdp.dataset, frame, **options) == wanted


@pytest.mark.parametrize("constant", [1, 1.0, "1"])
def test_a_category_that_is_a_number_is_its_digits_beside_an_empty_cell(constant):
    """For pandas a column of whole numbers with an empty cell is one of 1.0 and 2.0."""
    small = np.array([np.nan, 1, 2] * 8, np.float32)
    for numbers in (hospital(stage=[None, 1, 2] * 8), hospital(stage=["", "1", "2"] * 8), hospital(stage=small)):
        found = fdp.dataset(numbers, label="sick", categories={"stage": [1, 2]}, fill={"stage": constant})
        assert rows_of(found)[:, 2:].sum(0).tolist() == [16, 8]


WRONG = [
    ({"drop": "stag"}, "drop must be of columns, got 'stag', which no table has; did you mean stage?"),
    ({"drop": "stage,sick"}, "which is a label, a client or the split"),
    ({"standardise": "aeg=1:2"}, "standardise must be of columns that are features, got 'aeg'; did you mean age?"),
    ({"standardise": "age=1"}, "NAME=MEAN:STD"),
    ({"standardise": "age=1:0"}, "by a positive deviation, got a deviation of 0; --drop age leaves it out"),
    ({"standardise": "age=1:nan"}, "by a positive deviation"),
    ({"standardise": "age=1:1e-300"}, "finite in float32"),
    ({"standardise": "recrods"}, "NAME=..."),
    ({"standardise": "absent.csv"}, "csv file must be an existing file"),
    ({"standardise": "hospital_0.csv"}, "a public file, not the records"),
    ({"standardise": "wards.csv"}, "wards.csv: column dose must be of numbers"),
    ({"standardise": "stated.csv"}, "stated.csv must be a row for each column of numbers, got no dose"),
    ({"categories": "stage"}, "categories must be NAME="),
    ({"categories": "stage=A|A", "drop": None}, "different words"),
    ({"categories": "stage=A"}, "categories must be of columns that are features, got 'stage'"),
    ({"fill": "age=old"}, "fill of age must be a number"),
    ({"fill": "age=1,age=2"}, "fill must be of each column once"),
    ({"label_column": "id", "drop": "stage"}, "column id must be labels, got another in every row, as ids are"),
    ({"drop": None}, "column stage must be numeric, got 'A' in row 1; --categories stage=WORD|WORD states its words"),
]


@pytest.mark.parametrize(("changed", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_options_cannot_mean_is_one_line(changed, words):
    for number in range(3):
        frame = hospital(id=DRAWS.permutation(1000)[:24])
        if number == 2:
            frame.loc[4, "age"] = None
        frame.to_csv(f"hospital_{number}.csv", index=False)
    pathlib.Path("wards.csv").write_text("age,dose\n1,x\n2,y\n")
    pathlib.Path("stated.csv").write_text("column,mean,std\nage,50,20\nid,1,1\n")
    options = {"label_column": "sick", "drop": "stage,id", "fill": "50"} | changed
    assert words in refusal(load, "csv:hospital_*.csv", **options)


def test_a_column_without_spread_cannot_be_standardised_by_the_records():
    told = refusal(fdp.dataset, hospital(age=3.0), label="sick", drop=["stage"], standardise="records")
    assert told.startswith("standardise age must be by a positive deviation, got a deviation of 0; drop=['age']")


# Dialects of CSV.


def test_dialects_of_csv_are_read_or_refused_with_their_remedy(hospitals):
    plain = pathlib.Path("hospital_0.csv").read_text().replace("age,", "âge,", 1)
    expected = load("csv:hospital_0.csv", **WORDS)
    head, *rows = plain.splitlines()
    for content in (
        b"\xef\xbb\xbf" + plain.encode(),
        plain.replace("\n", "\r\n").encode(),
        plain.replace("\n", "\n\n").encode(),
        plain.replace(",", ", ").encode(),
        "\n".join([head, *(f"{row}.0" for row in rows)]).encode(),  # labels 0.0 and 1.0
    ):
        pathlib.Path("a.csv").write_bytes(content)
        found = load("csv:a.csv", **WORDS)
        np.testing.assert_array_equal(found.x_train, expected.x_train)
        np.testing.assert_array_equal(found.y_train, expected.y_train)
    assert "labels written as 1.0 are whole numbers" in found.notes
    for content, words in (
        (plain.encode("latin-1"), "iconv -f latin1 -t utf-8 a.csv"),
        (plain.encode("utf-16"), "iconv -f utf-16 -t utf-8 a.csv"),
        (
            plain.replace(",", ";").replace(".", ",").encode(),
            "pandas.read_csv('a.csv', sep=';', decimal=',').to_csv('points_a.csv', index=False)",
        ),
        ((plain + plain).encode(), "the header again in row 25; drop that row, or name the files"),
    ):
        pathlib.Path("a.csv").write_bytes(content)
        assert words in refusal(load, "csv:a.csv", **WORDS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ({"fill": "dose=0.5,stage=A"}, {"fill": {"dose": 0.5, "stage": "A"}}),
        ({"fill": "0", "drop": "stage", "categories": None}, {"fill": 0, "drop": ["stage"], "categories": None}),
        ({"categories": "stage=A|B|C"}, {"categories": {"stage": ["A", "B", "C"]}}),
        ({"missing": "-9,B"}, {"missing": [-9, "B"], "categories": {"stage": ("A", "C")}}),
        ({"standardise": "age=50:20,dose=0:1"}, {"standardise": {"age": (50, 20), "dose": (0, 1)}}),
    ],
)
def test_files_and_tables_take_texts_and_values_of_options(text, value):
    frame = hospital()
    frame.loc[3, "dose"] = None
    frame.to_csv("a.csv", index=False)
    common = {"categories": {"stage": ["A", "B", "C"]}, "fill": {"dose": 1, "stage": "C"}}
    if "missing" in text:
        text = text | {"categories": "stage=A|C"}
    read = [load("csv:a.csv", label_column="sick", **common | options) for options in (text, value)]
    read += [fdp.dataset(pd.read_csv("a.csv"), label="sick", **common | options) for options in (text, value)]
    for other in read[1:]:
        assert all(np.array_equal(one, same) for one, same in zip(read[0][1:5], other[1:5]))


def test_words_that_a_text_would_cut_are_refused():
    frame = hospital(stage=["1,5", "2"] * 12)
    frame.to_csv("a.csv", index=False)
    words = {"label_column": "sick", "categories": {"stage": ["1,5", "2"]}}
    assert "categories must be without , = |, got '1,5'; read the file with pandas" in refusal(
        load, "csv:a.csv", **words
    )
    assert "drop must be at least one entry, got []; leave the option out" in refusal(load, "csv:a.csv", drop=[])


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_fields_apart_by_another_mark_are_those_apart_by_commas(separator):
    frame = hospital(ward=["1;a|b", "2\tb", "3, c"] * 8)
    options = {"label_column": "sick", "client_column": "ward", "categories": "stage=A|B|C"}
    frame.to_csv("commas.csv", index=False)
    frame.to_csv("marks.csv", index=False, sep=separator)
    commas, marks = load("csv:commas.csv", **options), load("csv:marks.csv", **options)
    assert all(np.array_equal(one, other) for one, other in zip(commas[1:5], marks[1:5]))
    assert np.array_equal(commas.client_ids, marks.client_ids)


def test_commas_in_ids_categories_and_columns_without_use_are_no_decimals():
    frame = hospital(ward=["1,5", "2"] * 12, stage=["3,5", "4"] * 12, note=["1,0"] * 24)
    frame.to_csv("a.csv", index=False, sep=";")
    options = {"label_column": "sick", "client_column": "ward", "categories": "stage=4", "drop": "note"}
    assert "3,5" in refusal(load, "csv:a.csv", **options)
    found = load("csv:a.csv", **options | {"drop": "note,stage", "categories": None})
    assert {*found.client_ids} == {"1,5", "2"}


def test_commas_separate_fields_whose_names_have_other_marks():
    hospital().rename(columns={"age": "a;b|c", "dose": "d;e"}).to_csv("a.csv", index=False)
    assert load("csv:a.csv", **WORDS).x_train.shape[1:] == (2,)


# Files without a line of names, and words for what is missing.

PEOPLE = [f"{30 + place},{('male', 'female')[place % 2]},{place * place % 7 / 2},{place % 2}" for place in range(24)]
NUMBERS = [f"{30 + place},{place * place % 7 / 2},{place % 2}" for place in range(24)]
RECORD = "first line must be the names of the columns, got a record"


def written(*lines):
    pathlib.Path("a.csv").write_text("\n".join([*lines, ""]))


def test_a_stray_quotation_mark_takes_no_rows():
    def read(texts, users):
        rows = zip(texts, users, strict=True)
        written("x,text,sick,user", *(f"{at}.5,{text},{at % 2},{user}" for at, (text, user) in enumerate(rows)))
        return load("csv:a.csv", label_column="sick", user_column="user", records_per_user=1, drop="text")

    texts, users = [f"word{at}" for at in range(40)], [f"u{at}" for at in range(40)]
    assert len(rows_of(read(texts, users))) == 40
    refused = refusal(read, texts, [*users[:8], '"u8', "u9", 'u10"', *users[11:]])
    assert "column user must be names of one line" in refused
    refused = refusal(read, [*texts[:8], '"word8', "word9", 'word10" off', *texts[11:]], users)
    assert "a.csv: line 12 must be quotation marks in pairs" in refused
    whole = [*texts[:8], '"two lines\nof one, ""quoted"" text"', *texts[9:]]
    assert len(rows_of(read(whole, users))) == 40


@pytest.mark.parametrize(
    ("lines", "label"),
    [
        (NUMBERS, "0"),
        ([",".join(f'"{cell}"' for cell in line.split(",")) for line in NUMBERS], "0"),
        (["\ufeff" + NUMBERS[0], *NUMBERS[1:]], "0"),
        (["1,1,1", *NUMBERS], "1"),  # no names: twice the same would be refused as such
        (PEOPLE, "0"),
        (PEOPLE, "male"),
        (["63,male,?,0", *PEOPLE], "0"),
        ([f"{place}.5,a{place % 2}" for place in range(24)], "a0"),
        ([f"{('male', 'female')[place % 2]},{'xyz'[place % 3]}" for place in range(24)], "x"),
        ([f"2020-01-{place + 1:02d},{'xyz'[place % 3]}" for place in range(24)], "x"),
        (["63,male,2,1"], "1"),
        *(([f"{word},1.5,0", *NUMBERS], "0") for word in ("-", "n/a", "none", "inf", '"1,5"', "unknown", "True")),
        ([f"{place % 2 > 0},{place / 2},{place % 3}" for place in range(24)], "0"),
    ],
)
def test_a_record_in_the_place_of_names_is_refused_and_not_lost(lines, label):
    written(*lines)
    told = refusal(load, "csv:a.csv", label_column=label)
    assert RECORD in told
    assert "--no-header names columns c0, c1" in told


@pytest.mark.parametrize(
    ("names", "lines", "options"),
    [
        ("age,dose,sick", NUMBERS, {}),
        ("age,2019,sick", NUMBERS, {}),
        ("NA,0,sick", NUMBERS, {}),
        ("2020-01-01,2020-01-02,sick", NUMBERS, {}),
        (",age,sick", NUMBERS, {}),
        ("sex,sick", [f"{'mf'[place % 2]},{'xyz'[place % 3]}" for place in range(24)], {"categories": "sex=m|f"}),
        ("2019,sick", [f"{place / 2},{'xyz'[place % 3]}" for place in range(24)], {}),
        ("0,1,2", NUMBERS, {"label_column": "2", "no_header": False}),  # on the user's word
    ],
)
def test_names_may_be_what_they_like_where_something_says_that_they_are_names(names, lines, options):
    written(names, *lines)
    found = load("csv:a.csv", **{"label_column": "sick"} | options)
    assert len(found.x_train) + len(found.x_test) == 24


def test_no_header_keeps_every_record_and_counts_the_columns():
    written(*PEOPLE)
    options = {"no_header": True, "label_column": "c3", "categories": "c1=male|female"}
    found = rows_of(load("csv:a.csv", **options))
    assert found[:, 0].tolist() == [30.0 + place for place in range(24)]
    assert found[:, 1:3].sum(0).tolist() == [12, 12]
    options |= {"categories": None, "standardise": "public.csv"}
    pathlib.Path("public.csv").write_text("column,mean,std\nc0,30,2\n")  # which has names
    found = load("csv:a.csv", **options | {"feature_columns": "c0"})
    assert rows_of(found)[:, 0].tolist() == [place / 2 for place in range(24)]
    kept = load("csv:a.csv", **options | {"standardise": None, "drop": "c0,c1", "client_column": None})
    assert kept.x_train.shape[1] == 1
    owned = load("csv:a.csv", no_header=True, label_column="c3", client_column="c1")
    assert np.unique(owned.client_ids).tolist() == ["female", "male"]


def test_names_of_numbers_but_for_the_label_are_no_record():
    """As pandas writes a table of numbered columns: the label's name would be a class of one record."""
    written("0,1,sick", *NUMBERS)
    told = refusal(load, "csv:a.csv", no_header=True, label_column="c2")
    assert "first line must be a record, got names, 0, 1, sick; drop --no-header" in told
    written("63,1.5,sick", *(f"{line}-{'ab'[place % 2]}" for place, line in enumerate(NUMBERS)))
    assert len(rows_of(load("csv:a.csv", no_header=True, label_column="c2"))) == 25


def test_of_several_files_the_one_without_names_is_named(hospitals):
    hospital(stage=None).to_csv("hospital_1.csv", index=False, header=False)
    told = refusal(load, "csv:hospital_*.csv", **WORDS)
    assert told.startswith("hospital_1.csv: ")
    assert RECORD in told
    for name, frame in hospitals.items():
        frame.to_csv(f"{name}.csv", index=False, header=name == "hospital_2")
    options = {"no_header": True, "label_column": "c3", "drop": "c2"}
    told = refusal(load, "csv:hospital_*.csv", **options)
    assert told == "hospital_2.csv: first line must be a record, got names, age, dose, stage, sick; drop --no-header"
    hospitals["hospital_2"].to_csv("hospital_2.csv", index=False, header=False)
    assert len(np.unique(load("csv:hospital_*.csv", **options).client_ids)) == 3


def test_no_header_is_a_flag_without_a_value_and_a_key_of_files(capsys):
    written(*NUMBERS)
    flags = ["--label-column", "c2", "--num-clients", "3"]
    assert cli.main(["data", "csv:a.csv", "--no-header", "--json", *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["records"] + told["test_records"] == 24 - (24 - told["test_records"]) % 3
    assert told["options"]["no_header"]
    assert cli.main(["data", "csv:a.csv", *flags]) == 2
    assert RECORD in capsys.readouterr().err
    assert cli.main(["data", "csv:a.csv", "--no-header=false", "--label-column", "0"]) == 0
    pathlib.Path("run.toml").write_text('dataset = "csv:a.csv"\nno_header = true\nmissing = "-9"\n')
    assert config.RunSpec.of(config.read("run.toml")).data.no_header
    assert "left out for parquet" in refusal(load, "parquet:hospital_0.parquet", no_header=True)


def test_files_of_other_shapes_than_their_first_line_and_of_other_kinds_are_refused():
    written("age,dose,sick", *(f"{line},9" for line in NUMBERS))  # else pandas takes the ages for names of rows
    assert "records of 3 fields, as the first line, got rows of more fields" in refusal(
        load, "csv:a.csv", label_column="sick"
    )
    written("age,dose,sick", *(f"{line}," for line in NUMBERS))  # as spreadsheets write empty cells
    assert rows_of(load("csv:a.csv", label_column="sick"))[:, 0].tolist() == [30.0 + place for place in range(24)]
    pathlib.Path("a.arff").write_text("@relation a\n@attribute age numeric\n@data\n1\n")
    assert "got an ARFF file; sed" in refusal(load, "csv:a.arff", **WORDS)


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
@pytest.mark.parametrize(
    ("word", "more"), [("?", {}), (" ? ", {}), ("n.a.", {"missing": "n.a.,-9"}), ("-9", {"missing": "-9"})]
)
def test_a_word_for_a_missing_value_is_one_in_every_source(kind, word, more):
    """As a number, a category, a label, a client."""

    def read(frame, **options):
        if kind == "frame":
            short = {"label_column": "label", "client_column": "client"}
            options = {short.get(name, name): value for name, value in options.items()}
            if "missing" in options:
                options["missing"] = options["missing"].split(",")
            if "categories" in options:
                options["categories"] = {"stage": ["A", "B"]}
            if "fill" in options:
                options["fill"] = {"age": 7} if options["fill"] == "age=7" else {"stage": "B"}
            return fdp.dataset(frame, **options)
        frame.to_csv("a.csv", index=False) if kind == "csv" else frame.to_parquet("a.parquet")
        return load(f"{kind}:a.{kind}", **options)

    cells = [word, "50"] * 12
    plain = hospital(stage=None)
    numbers = read(plain.assign(age=cells), label_column="sick", fill="age=7", **more)
    assert rows_of(numbers)[:, 0].tolist() == [7] * 12 + [50] * 12
    told = refusal(read, plain.assign(age=cells), label_column="sick", **more)
    assert f"age must be given in every row, got {word.strip()!r}, which counts as missing, in row 1" in told
    staged = plain.assign(stage=[word, "A"] * 12)
    assert "which counts as missing" in refusal(read, staged, label_column="sick", categories="stage=A|B", **more)
    found = rows_of(read(staged, label_column="sick", categories="stage=A|B", fill="stage=B", **more))
    assert found[:, 2:].sum(0).tolist() == [12, 12]
    for column in ("label_column", "client_column"):
        options = {"label_column": "sick", column: "who", **more}
        options |= {"drop": ["sick"] if kind == "frame" else "sick"} if column == "label_column" else {}
        told = refusal(read, plain.assign(who=[word, "x", "x", "x"] * 6), **options)
        assert "column who must be given in every row" in told


def test_a_word_that_is_stated_as_a_category_is_not_missing():
    hospital(stage=["?", "A", "NA", "None"] * 6).to_csv("a.csv", index=False)
    assert load("csv:a.csv", label_column="sick", categories="stage=A|?|NA|None").x_train.shape[1] == 6
    hospital(stage=["?", "A", "NA"] * 8).to_csv("a.csv", index=False)
    told = refusal(load, "csv:a.csv", label_column="sick", categories="stage=A|?|NA", missing="?")
    assert told.startswith("missing must be other words than the categories of stage, got '?'")
    found = rows_of(load("csv:a.csv", label_column="sick", categories="stage=A|B", fill="stage=B"))
    assert found[:, 2:].sum(0).tolist() == [8, 16]


def test_numbers_that_are_stated_as_missing_are():
    frame = hospital(stage=None, age=[-9.0, 50.0] * 12)
    assert rows_of(fdp.dataset(frame, label="sick"))[0, 0] == -9
    assert rows_of(fdp.dataset(frame, label="sick", missing=[-9], fill={"age": 7}))[0, 0] == 7
    frame.to_csv("a.csv", index=False)
    assert rows_of(load("csv:a.csv", label_column="sick", missing="-9", fill="age=7"))[0, 0] == 7


def test_a_column_of_lists_is_refused_by_name():
    hospital(stage=None, age=[[1, 2]] * 24).to_parquet("a.parquet")
    told = refusal(load, "parquet:a.parquet", label_column="sick")
    assert told.startswith("a.parquet: column age must be numeric, got '[1 2]' in row 1")


@pytest.mark.parametrize("of_file", [False, True])
def test_a_missing_number_is_one_however_it_is_written(of_file):
    """Beside words of its column, numbers are text in a file, and Python's own in a table."""
    frame = hospital(stage=None, age=[-9, -9.0, "-9.00", "?"] + [50] * 20)
    frame.to_csv("a.csv", index=False)
    options = {"missing": "-9", "fill": "age=7"}
    found = (
        load("csv:a.csv", label_column="sick", **options) if of_file else fdp.dataset(frame, label="sick", **options)
    )
    assert rows_of(found)[:, 0].tolist() == [7] * 4 + [50] * 20


def test_a_name_is_the_same_with_spaces_after_it_or_as_a_number_with_a_point(hospitals):
    """Else a person would be two, with twice the records that the bound allows."""
    who = ["u1", "u1 ", "7", "7.0"] * 6
    hospital(stage=None, who=who, sick=["yes", "no ", "no", "yes "] * 6).to_csv("a.csv", index=False)
    options = {"label_column": "sick", "drop": "dose"}
    found = load("csv:a.csv", user_column="who", records_per_user=2, **options)
    assert len({*found.unit_ids}) == 1  # of two: the other's records are for testing
    assert (len(found.x_train), len(found.x_test)) == (12, 12)
    split = hospital(stage=None, who=who, sick=["yes", "no"] * 12, split=["train"] * 18 + ["test"] * 6)
    split.to_csv("b.csv", index=False)
    found = load("csv:b.csv", user_column="who", records_per_user=2, **options)
    assert found.tests_of_units  # so that nothing is decided by these tests for free
    assert fdp.federate(found, fdp.data.iid(found, 1)).holds_tests
    assert found.class_names.listed == ("no", "yes")
    assert {*load("csv:a.csv", client_column="who", **options).client_ids} == {"u1", "7"}
    for name, owner in (("hospital_0", "7"), ("hospital_1", "7.0"), ("hospital_2", "8 ")):
        hospitals[name].assign(who=owner).to_csv(f"{name}.csv", index=False)
    told = refusal(load, "csv:hospital_*.csv", client_column="who", **WORDS)
    assert told.startswith("clients must be each in one file, got 7 in hospital_0.csv and hospital_1.csv")
    found = load("csv:hospital_0.csv,hospital_2.csv", client_column="who", **WORDS)
    assert np.unique(found.client_ids).tolist() == [7, 8]


def test_a_folder_is_read_with_endings_in_capitals(hospitals, tmp_path):
    hospital(stage=None).to_csv("hospital_9.CSV", index=False)
    for name in hospitals:
        hospital(stage=None).to_csv(f"{name}.csv", index=False)
    found = load("csv:.", label_column="sick")
    assert np.unique(found.client_ids).tolist() == [*hospitals, "hospital_9"]


# A column of texts.


def messages(records=20):
    """Short messages of four users, and whether they like it."""
    likes = [number % 2 for number in range(records)]
    texts = [f"I {'like' if good else 'hate'} it very much" for good in likes]
    return pd.DataFrame({"user": [f"u{n % 4}" for n in range(records)], "text": texts, "mood": likes})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_of_texts_becomes_tokens_of_its_words(kind):
    frame = messages()
    frame.to_csv("messages.csv", index=False)
    frame.to_parquet("messages.parquet")
    read = load(f"{kind}:messages.{kind}", label_column="mood", client_column="user", length=6)
    assert read.tokens
    assert read.x_train.shape == (16, 6)
    assert read.vocabulary.size == 2 + len({"i", "like", "hate", "it", "very", "much"})
    assert "a vocabulary of the most frequent words of all training records" in read.learnt
    first, second = (read.x_train[read.y_train == label] for label in (0, 1))
    assert (first == first[0]).all()
    assert (second == second[0]).all()
    assert (first[0] != second[0]).tolist() == [False, True, False, False, False, False]
    assert (first[0] == 0).tolist() == [False] * 5 + [True]  # padded


def test_texts_of_people_are_bounded_by_person_and_public_words_are_no_statistic():
    messages().to_csv("messages.csv", index=False)
    pathlib.Path("words.txt").write_text("like\nhate\n")
    people = {"user_column": "user", "records_per_user": 3}
    read = load("csv:messages.csv", label_column="mood", vocabulary="words.txt", **people)
    assert read.learnt == ()
    assert [bound.records for bound in read.bounds] == [3]
    assert set(read.unit_ids) <= {"u0", "u1", "u2", "u3"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "column text must be numeric, got 'I like it very much' in row 2; --feature-columns text --length 25"),
        ({"length": 5, "task": "regression", "feature_columns": "text"}, "task must be classes, for a column of texts"),
        ({"length": 5, "standardise": "records"}, "standardise must be left out for a column of texts"),
        ({"length": 5, "drop": "text", "feature_columns": "more"}, "column more must be texts, got numbers; --length"),
        ({"vocabulary_size": 9}, "features must be one column of texts, got text, more; --feature-columns NAME"),
    ],
)
def test_what_is_no_column_of_texts_is_refused_with_its_remedy(options, words):
    frame = messages().assign(more=range(20))
    frame.loc[0, "text"] = "1"
    frame.to_csv("messages.csv", index=False)
    assert words in refusal(load, "csv:messages.csv", label_column="mood", client_column="user", **options)


def test_a_text_that_is_missing_is_named_or_filled():
    frame = messages()
    frame.loc[3, "text"] = None
    frame.to_csv("messages.csv", index=False)
    options = {"label_column": "mood", "client_column": "user", "length": 5}
    assert "column text must be given in every row, got nothing in row 4" in refusal(
        load, "csv:messages.csv", **options
    )
    assert len(load("csv:messages.csv", **options, fill="text=silence").x_train) == 16


@pytest.mark.parametrize("given", [np.array(["a b", "c"]), np.array(["a b", "c"], object), ["a b", "c"]])
def test_arrays_of_texts_are_refused_with_what_reads_them(given):
    assert "x_train must be real numbers, got texts; load(" in refusal(fdp.dataset, given, [0, 1], given, [0, 1])
    table = refusal(fdp.dataset, messages(), label="mood", client="user")
    assert 'feature_columns="text", length=25) reads texts of a file' in table


def test_a_client_in_two_files_is_refused_however_it_is_written():
    for number, (one, other) in enumerate(
        [("A", "A "), (7, "7"), (7.0, "7"), ("Jos\u00e9", "Jose\u0301"), ("A", b"A")]
    ):
        for name, who in (("a", one), ("b", other)):
            pd.DataFrame({"f": range(4), "label": [0, 1] * 2, "who": [who] * 4}).to_parquet(f"{name}{number}.parquet")
        told = refusal(load, f"parquet:a{number}.parquet,b{number}.parquet", client_column="who")
        assert "clients must be each in one file" in told


def test_spaces_behind_train_and_test_say_nothing():
    frame = messages().assign(text=range(20), split=["train", "train ", "test", " test"] * 5).drop(columns="user")
    frame.to_csv("split.csv", index=False)
    assert len(load("csv:split.csv", label_column="mood").x_test) == 10


def test_numbers_of_two_kinds_name_as_many_clients_and_classes():
    wide = 2**60 + np.arange(4)
    for name, who in (("a", wide), ("b", (wide + 4).astype(np.uint64)), ("c", 2**63 + np.arange(4, dtype=np.uint64))):
        frame = pd.DataFrame({"f": range(8), "label": [0, 1] * 4, "who": np.repeat(who, 2)})
        frame.astype({"label": who.dtype}).to_parquet(f"{name}.parquet")
    for named, clients in (("a.parquet,b.parquet", 8), ("b.parquet,c.parquet", 8), ("c.parquet", 4)):
        read = load(f"parquet:{named}", client_column="who")
        assert (len(np.unique(read.client_ids)), read.classes, read.class_names) == (clients, 2, None)


def test_files_of_a_folder_that_are_not_read_are_named():
    folder = pathlib.Path("mixed")
    folder.mkdir()
    for name, mark in (("a.csv", ","), ("b.tsv", "\t")):
        messages().assign(text=range(20)).drop(columns="user").to_csv(folder / name, sep=mark, index=False)
    (folder / ".hidden").write_text("")
    for named in ("csv:mixed", "csv:./mixed/"):
        notes = load(named, label_column="mood").notes
        assert [note for note in notes if "not read" in note] == [
            "warning: not read in the folder: b.tsv; a pattern, 'FOLDER/*', names them"
        ]
    (folder / "b.tsv").unlink()
    assert not any("not read" in note for note in load("csv:mixed", label_column="mood").notes)


def test_words_of_a_vocabulary_that_no_text_can_hold_are_counted():
    messages().to_csv("messages.csv", index=False)
    options = {"label_column": "mood", "vocabulary": "words.txt", "length": 5, "drop": "user"}
    for words, warned in (
        ("Like\nhate\nit's\n", "warning: 2 of 3 words of the vocabulary, such as 'Like', are in"),
        ("like\n", ""),
    ):
        pathlib.Path("words.txt").write_text(words)
        notes = [note for note in load("csv:messages.csv", **options).notes if "words of the vocabulary" in note]
        assert [note.startswith(warned) for note in notes] == [True] * bool(warned)


def test_a_folder_of_a_mac_has_no_other_files(hospitals):
    folder = pathlib.Path("copied")
    folder.mkdir()
    (folder / "._hospital_0.csv").write_bytes(b"\0\5\x16\7\xff")
    (folder / "HOSPITAL_0.CSV.GZ").write_bytes(gzip.compress(pathlib.Path("hospital_0.csv").read_bytes()))
    assert {*load("csv:copied", **WORDS).client_ids} == {"HOSPITAL_0"}


def test_a_list_of_words_with_a_byte_order_mark_keeps_its_first():
    messages().to_csv("messages.csv", index=False)
    options = {"label_column": "mood", "vocabulary": "words.txt", "length": 5, "drop": "user"}
    rows = []
    for encoding in ("utf-8", "utf-8-sig"):
        pathlib.Path("words.txt").write_text("like\nhate\n", encoding=encoding)
        rows.append(load("csv:messages.csv", **options).x_train.tolist())
    assert rows[0] == rows[1]


def test_a_bound_on_people_that_is_missing_or_leaves_a_client_nothing_says_how_to_go_on():
    messages().to_csv("messages.csv", index=False)
    people = {"label_column": "mood", "user_column": "user", "length": 5}
    assert "records_per_user 10 keeps ten of each" in refusal(load, "csv:messages.csv", **people)
    read = load("csv:messages.csv", records_per_user=9, **people)
    rows = np.arange(len(read.x_train))
    assert "divide by users (--client-column)" in refusal(fdp.federate, read, [rows[:12], rows[12:]])
