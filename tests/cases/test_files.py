"""C50, C53, C54: files and objects that go in stay as they are; what comes out is whole or not there."""

from __future__ import annotations

import copy
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qtool
from qtool import publish
from qtool.__main__ import main
from qtool.calibrate import statsfile
from qtool.errors import ConfigError, DataError, ModelError, QtoolError, VerificationError
from tests.cases.files_support import metadata, mlp, model, random, samples, save_external, snapshot

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """A folder with a model and its samples, as the current folder."""
    onnx.save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **samples())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def external(tmp_path) -> Path:
    """A folder ``src`` with a model whose weights lie in ``weights.bin``."""
    folder = tmp_path / "src"
    folder.mkdir()
    save_external(mlp(64), folder / "m.onnx", "weights.bin")
    np.savez(folder / "c.npz", **samples(width=64))
    return folder


def run_cli(*args: str | bytes, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qtool", *args],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


# ------------------------------------------------------------------------------------------------- C50 external data


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_c50_external_data_from_another_folder(external, tmp_path, monkeypatch, format_):
    before = snapshot(external)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = qtool.quantize("../src/m.onnx", "../src/c.npz", output="../out/q.onnx", format=format_)
    assert snapshot(external) == before
    assert snapshot(tmp_path / "elsewhere") == {}
    assert sorted(snapshot(tmp_path / "out")) == ["q.onnx", "q.onnx.data"]
    proto = onnx.load(tmp_path / "out" / "q.onnx", load_external_data=False)
    locations = {
        entry.value for tensor in proto.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    assert locations == {"q.onnx.data"}
    assert result.bytes_after == sum(p.stat().st_size for p in (tmp_path / "out").iterdir())
    assert result.bytes_before == sum((external / name).stat().st_size for name in ("m.onnx", "weights.bin"))
    assert result.bytes_after < 0.5 * result.bytes_before
    # the result stands on its own: it moves, and the source may go
    (tmp_path / "out").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    report = qtool.evaluate("src/m.onnx", "moved/q.onnx", "src/c.npz", latency=False)
    assert report.outputs[0].values["sqnr"] > 25


def test_c50_no_empty_data_file(tmp_path):
    """Weights that become small enough for the model file leave nothing to put beside it."""
    save_external(mlp(8), tmp_path / "m.onnx", "w.bin")
    result = qtool.quantize(tmp_path / "m.onnx", samples())
    assert sorted(snapshot(tmp_path)) == ["m.int8.onnx", "m.onnx", "w.bin"]
    assert result.bytes_after == result.model_path.stat().st_size


def test_c50_default_output_of_external_data(external):
    before = snapshot(external)
    qtool.quantize(external / "m.onnx", external / "c.npz")
    after = snapshot(external)
    assert set(after) - set(before) == {"m.int8.onnx", "m.int8.onnx.data"}
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("external_data", [False, True])
def test_c50_same_bytes_whatever_the_hash_seed_and_the_threads(external, work, external_data):
    source = external / "m.onnx" if external_data else work / "m.onnx"
    calib = external / "c.npz" if external_data else work / "c.npz"
    made = []
    for seed, threads in (("0", "1"), ("1", "2"), ("77", "2")):
        folder = work / f"out{seed}"
        folder.mkdir()
        args = ["quantize", str(source), "--calib", str(calib), "--threads", threads, "-o", "q.onnx", "-q"]
        done = run_cli(*args, cwd=folder, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        made.append(snapshot(folder))
    assert made[0] == made[1] == made[2]
    assert len(made[0]) == 2 if external_data else 1


def test_c50_the_result_of_a_proto_is_the_same_as_that_of_its_file(work):
    qtool.quantize("m.onnx", "c.npz", output="a.onnx")
    qtool.quantize(onnx.load("m.onnx"), "c.npz", output="b.onnx")
    a, b = onnx.load("a.onnx"), onnx.load("b.onnx")
    assert a.graph == b.graph


def test_an_output_whose_data_file_holds_the_source_weights_is_refused(tmp_path):
    save_external(mlp(64), tmp_path / "m.onnx", "q.onnx.data")
    np.savez(tmp_path / "c.npz", **samples(width=64))
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match=r"q\.onnx\.data' holds the input model's weights"):
        qtool.quantize(tmp_path / "m.onnx", tmp_path / "c.npz", output=tmp_path / "q.onnx", force=True)
    with pytest.raises(ConfigError, match="holds the input model's weights"):
        qtool.quantize(tmp_path / "m.onnx", tmp_path / "c.npz", output=tmp_path / "q.onnx.data", force=True)
    assert snapshot(tmp_path) == before


def test_somebody_elses_data_file_needs_force(external):
    (external / "q.onnx.data").write_bytes(b"somebody's weights")
    with pytest.raises(ConfigError, match=r"q\.onnx\.data' exists already"):
        qtool.quantize(external / "m.onnx", external / "c.npz", output=external / "q.onnx")
    assert (external / "q.onnx.data").read_bytes() == b"somebody's weights"
    qtool.quantize(external / "m.onnx", external / "c.npz", output=external / "q.onnx", force=True)
    onnx.checker.check_model(external / "q.onnx", full_check=True)


def test_missing_external_data_is_one_line(external):
    (external / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights\.bin', which is missing"):
        qtool.quantize(external / "m.onnx", external / "c.npz")
    assert not (external / "m.int8.onnx").exists()


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_c50_external_constants_inside_branches(tmp_path, format_):
    """An If whose bodies hold a Constant node and an initializer that lie in the data file."""
    inner = onnx.numpy_helper.from_array(random(64, seed=5), "c")
    branches = []
    for i, nodes in enumerate(([onnx.helper.make_node("Constant", [], ["c"], "const", value=inner)], [])):
        branches.append(
            onnx.helper.make_graph(
                [*nodes, onnx.helper.make_node("Add", ["m", "c"], [f"o{i}"], f"add{i}")],
                f"branch{i}",
                [],
                [onnx.helper.make_tensor_value_info(f"o{i}", onnx.TensorProto.FLOAT, None)],
                [] if nodes else [inner],
            )
        )
    top = [
        onnx.helper.make_node("MatMul", ["x", "W"], ["m"], "fc"),
        onnx.helper.make_node("If", ["flag"], ["i"], "if", then_branch=branches[0], else_branch=branches[1]),
        onnx.helper.make_node("MatMul", ["i", "W"], ["y"], "fc2"),
        onnx.helper.make_node("ReduceSum", ["x"], ["s"], "sum", keepdims=0),
        onnx.helper.make_node("Cast", ["s"], ["flag"], "cast", to=onnx.TensorProto.BOOL),
    ]
    top = [top[3], top[4], top[0], top[1], top[2]]
    proto = model(top, {"W": random(64, 64)}, inputs={"x": ["N", 64]}, outputs={"y": ["N", 64]})
    onnx.save_model(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0,
        convert_attribute=True,
    )  # fmt: skip
    (tmp_path / "out").mkdir()
    data = samples(width=64)
    qtool.quantize(tmp_path / "m.onnx", data, output=tmp_path / "out" / "q.onnx", format=format_)
    report = qtool.evaluate(tmp_path / "m.onnx", tmp_path / "out" / "q.onnx", data, latency=False)
    assert report.outputs[0].values["sqnr"] > 25
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["q.onnx", "q.onnx.data"]


# ------------------------------------------------------------------------------------------ C53 nothing is mutated


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_c53_protos_and_arrays_stay_as_they_are(format_):
    proto, data = mlp(), samples()
    data_before = {name: array.tobytes() for name, array in data.items()}
    before = proto.SerializeToString(deterministic=True)
    result = qtool.quantize(proto, data, format=format_)
    qtool.inspect(proto)
    qtool.calibrate(proto, data)
    qtool.evaluate(proto, result.model, data, latency=False)
    assert proto.SerializeToString(deterministic=True) == before
    assert {name: array.tobytes() for name, array in data.items()} == data_before


def test_c53_an_ir_model_stays_as_it_is():
    loaded = ir.from_proto(mlp())
    before = ir.to_proto(loaded).SerializeToString(deterministic=True)
    names = [node.name for node in loaded.graph]
    qtool.quantize(loaded, samples())
    qtool.inspect(loaded)
    assert ir.to_proto(loaded).SerializeToString(deterministic=True) == before
    assert [node.name for node in loaded.graph] == names
    assert not any(node.metadata_props for node in loaded.graph)


def test_c53_an_ir_model_with_external_data_keeps_its_tensors(external):
    loaded = ir.load(external / "m.onnx")
    tensors = {name: value.const_value for name, value in loaded.graph.initializers.items()}
    qtool.quantize(loaded, external / "c.npz")
    assert {name: value.const_value for name, value in loaded.graph.initializers.items()} == tensors
    assert all(isinstance(tensor, ir.ExternalTensor) for tensor in tensors.values())


def test_c53_read_only_arrays_and_lists_are_taken():
    data = samples()
    data["x"].flags.writeable = False
    patterns = ["relu"]
    qtool.quantize(mlp(), data, exclude=patterns)
    assert patterns == ["relu"]
    config = qtool.QuantConfig(exclude=("relu",))
    before = copy.deepcopy(config)
    qtool.quantize(mlp(), data, config=config, format="qdq")
    assert config == before


# ----------------------------------------------------------------------------------------------- C54 a small result


@pytest.mark.parametrize("format_", ["qlinear", "qdq"])
def test_c54_smaller_and_no_unreferenced_initializer(work, format_):
    onnx.save(mlp(64), "big.onnx")
    result = qtool.quantize("big.onnx", samples(width=64), format=format_)
    assert result.bytes_before == Path("big.onnx").stat().st_size
    assert result.bytes_after == result.model_path.stat().st_size
    assert result.bytes_after < 0.4 * result.bytes_before
    graph = onnx.load(result.model_path).graph
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    assert {tensor.name for tensor in graph.initializer} <= used
    assert "W1" not in {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}


def test_c54_the_summary_shows_bytes_before_and_after(work):
    done = run_cli("quantize", "m.onnx", "--calib", "c.npz", cwd=work)
    line = next(line for line in done.stderr.splitlines() if line.startswith("Size"))
    assert f"{Path('m.onnx').stat().st_size} B" in line
    assert "->" in line


# ------------------------------------------------------------------------------------------- atomicity and clean-up


def break_saving(monkeypatch):
    def full(model, path, **_):
        Path(path).write_bytes(b"half a mod")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(ir, "save", full)
    return ConfigError, "No space left on device"


def break_checking(monkeypatch):
    def invalid(path, **_):
        if ".qtool-" in path:
            raise onnx.checker.ValidationError("odd node\nmore lines")

    monkeypatch.setattr(onnx.checker, "check_model", invalid)
    return VerificationError, "The quantized model is not valid ONNX: odd node$"


def break_running(monkeypatch):
    create = publish.create_session

    def refuse(path, **options):
        if ".qtool-" in str(path):
            raise ModelError("no kernel")
        return create(path, **options)

    monkeypatch.setattr(publish, "create_session", refuse)
    return VerificationError, "The quantized model does not run: no kernel"


def break_renaming(monkeypatch):
    def denied(draft, target):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "replace", denied)
    monkeypatch.setattr(os, "link", denied)
    return ConfigError, "Permission denied"


def break_by_interrupt(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(publish, "_compare", interrupt)
    return KeyboardInterrupt, ""


def break_by_bug(monkeypatch):
    def bug(*_, **__):
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(publish, "_compare", bug)
    return ZeroDivisionError, "odd"


BREAKS = [break_saving, break_checking, break_running, break_renaming, break_by_interrupt, break_by_bug]


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("existing", [False, True])
def test_a_run_that_fails_leaves_everything_as_it_was(work, monkeypatch, broken, existing):
    if existing:
        Path("q.onnx").write_bytes(b"the old result")
    before = snapshot(work)
    error, said = broken(monkeypatch)
    with pytest.raises(error, match=said or None):
        qtool.quantize("m.onnx", "c.npz", output="q.onnx", force=existing)
    assert snapshot(work) == before


@pytest.mark.parametrize("existing", [False, True])
def test_a_model_and_its_data_are_replaced_together_or_not_at_all(external, monkeypatch, existing):
    if existing:
        qtool.quantize(external / "m.onnx", external / "c.npz", weights="uint8")
    before = snapshot(external)

    def unless_denied(step):
        def denied(draft, target):
            if draft.name == "m.int8.onnx":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return step(draft, target)

        return denied

    monkeypatch.setattr(Path, "replace", unless_denied(Path.replace))
    monkeypatch.setattr(os, "link", unless_denied(os.link))
    with pytest.raises(ConfigError, match="Permission denied"):
        qtool.quantize(external / "m.onnx", external / "c.npz", force=existing)
    assert snapshot(external) == before


APPEARED = "was not there when the command began, and is now: it was left as it is."


def appear_while_verifying(monkeypatch, *names):
    """Somebody else writes these files while the model is verified."""
    compare = publish._compare

    def slow(*args, **options):
        for name in names:
            Path(name).write_bytes(b"of somebody else")
        return compare(*args, **options)

    monkeypatch.setattr(publish, "_compare", slow)


@pytest.mark.parametrize("links", [True, False])
def test_a_model_that_appears_during_the_run_is_left_alone(work, monkeypatch, capsys, links):
    if not links:

        def unsupported(*_):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", unsupported)
    before = snapshot(work)
    appear_while_verifying(monkeypatch, "q.onnx")
    assert main(["quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx", "-q"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: Output 'q.onnx' {APPEARED}",
        "hint: Overwrite it with --force, or choose another with -o.",
    ]
    assert Path("q.onnx").read_bytes() == b"of somebody else"
    assert [name for name in snapshot(work) if name not in before] == ["q.onnx"]
    assert main(["quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx", "-q", "--force"]) == 0
    onnx.checker.check_model("q.onnx", full_check=True)
    Path("q.onnx").unlink()
    monkeypatch.undo()
    monkeypatch.chdir(work)
    assert main(["quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx", "-q"]) == 0
    assert Path("q.onnx").stat().st_nlink == 1
    assert not list(work.glob(".qtool-*"))


@pytest.mark.parametrize("name", ["m.int8.onnx", "m.int8.onnx.data"])
def test_a_pair_of_which_one_file_appears_during_the_run_is_not_put_in_place(external, monkeypatch, name):
    monkeypatch.chdir(external)
    before = snapshot(external)
    appear_while_verifying(monkeypatch, name)
    with pytest.raises(ConfigError) as caught:
        qtool.quantize("m.onnx", "c.npz")
    assert caught.value.message == f"Output '{name}' {APPEARED}"
    Path(name).unlink()
    assert snapshot(external) == before
    result = qtool.quantize("m.onnx", "c.npz", force=True)
    assert result.bytes_after == sum(Path(f"m.int8.onnx{end}").stat().st_size for end in ("", ".data"))


def test_statistics_that_appear_during_the_run_are_left_alone(work, monkeypatch):
    save = statsfile._write

    def slow(archive, saved):
        Path("s.npz").write_bytes(b"of somebody else")
        save(archive, saved)

    monkeypatch.setattr(statsfile, "_write", slow)
    before = snapshot(work)
    with pytest.raises(ConfigError, match=f"^Statistics file 's.npz' {APPEARED}$"):
        qtool.calibrate("m.onnx", "c.npz", output="s.npz")
    assert Path("s.npz").read_bytes() == b"of somebody else"
    assert [name for name in snapshot(work) if name not in before] == ["s.npz"]
    qtool.calibrate("m.onnx", "c.npz", output="s.npz", force=True)
    assert qtool.load_stats("s.npz").statistics.keys() == qtool.calibrate("m.onnx", "c.npz").keys()


def test_force_replaces_a_link_and_not_what_it_leads_to(work):
    Path("other").write_bytes(b"the old result")
    Path("q.onnx").symlink_to("other")
    qtool.quantize("m.onnx", "c.npz", output="q.onnx", force=True)
    assert not Path("q.onnx").is_symlink()
    assert Path("other").read_bytes() == b"the old result"


def test_a_failing_verification_is_exit_code_1():
    assert VerificationError("x").exit_code == 1


PAUSE = """
import sys, time
from qtool import publish
from qtool.calibrate import collect

def pause(*a, **k):
    print("here", flush=True)
    time.sleep(60)

{place} = pause
from qtool.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("place", ["collect.collect", "publish._compare", "publish._check"])
def test_a_signal_in_the_middle_leaves_nothing(work, place, signum):
    Path("q.onnx").write_bytes(b"the old result")
    before = snapshot(work)
    args = ["quantize", "m.onnx", "--calib", "c.npz", "-o", "q.onnx", "--force"]
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSE.format(place=place), *args],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "here\n"
    if place.startswith("publish"):
        assert list(work.glob(".qtool-*"))
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "error: interrupted, nothing was written\n")
    assert snapshot(work) == before


# ------------------------------------------------------------------------------------------------------ destinations


def refuse(work: Path, output: object, match: str, *, force: bool = True) -> None:
    before = snapshot(work)
    with pytest.raises(ConfigError, match=match) as caught:
        qtool.quantize("m.onnx", "c.npz", output=output, force=force)
    assert caught.value.exit_code == 2
    assert snapshot(work) == before


def test_the_input_is_never_the_output(work):
    Path("link.onnx").symlink_to("m.onnx")
    os.link("m.onnx", "hard.onnx")
    Path("sub").mkdir()
    for output in ("m.onnx", work / "m.onnx", "sub/../m.onnx", "link.onnx", "hard.onnx"):
        refuse(work, output, "is the input model itself")
    # and the other way round: the model is given by the link
    with pytest.raises(ConfigError, match="is the input model itself"):
        qtool.quantize("link.onnx", "c.npz", output="m.onnx", force=True)


def test_an_existing_output_needs_force(work):
    Path("there.onnx").write_bytes(b"somebody's")
    refuse(work, "there.onnx", "exists already", force=False)
    Path("dangling.onnx").symlink_to("nowhere.onnx")
    refuse(work, "dangling.onnx", "exists already", force=False)


def test_force_replaces_a_link_and_not_what_it_points_to(work):
    Path("other.onnx").write_bytes(b"somebody's")
    Path("link.onnx").symlink_to("other.onnx")
    qtool.quantize("m.onnx", "c.npz", output="link.onnx", force=True)
    assert Path("other.onnx").read_bytes() == b"somebody's"
    assert not Path("link.onnx").is_symlink()


def test_outputs_that_are_no_files(work):
    Path("folder.onnx").mkdir()
    refuse(work, "folder.onnx", "is a directory")
    refuse(work, ".", "is a directory")
    refuse(work, "gone/q.onnx", "does not exist")
    refuse(work, "-", "would be stdout")
    refuse(work, "m.onnx/q.onnx", "does not exist")
    os.mkfifo("pipe.onnx")
    with pytest.raises(ConfigError, match="not a regular file"):
        qtool.quantize("m.onnx", "c.npz", output="pipe.onnx", force=True)
    assert Path("pipe.onnx").is_fifo()


@pytest.mark.parametrize("suffix", [".json", ".textproto", ".onnxtxt", ".pbtxt"])
def test_an_output_that_onnx_would_read_as_text_is_refused(work, suffix):
    refuse(work, f"q{suffix}", "reads as text")


def test_every_text_suffix_of_onnx_is_known():
    from onnx import serialization

    known = serialization.registry._extension_to_format
    assert {suffix for suffix, kind in known.items() if kind != "protobuf"} <= publish._TEXT_SUFFIXES


def test_a_folder_that_takes_no_files(work, monkeypatch):
    Path("ro").mkdir()
    monkeypatch.setattr(os, "access", lambda path, *_, **__: Path(path).name != "ro")
    refuse(work, "ro/q.onnx", "'ro' is not writable")


def test_a_folder_that_turns_out_not_to_take_files(work, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.mkdtemp", read_only)
    refuse(work, "q.onnx", "not writable: Read-only file system")


@pytest.mark.parametrize("name", ["my model.v1.2.onnx", "ümläut.onnx", "plain", ".onnx", "a\nb.onnx"])
def test_unusual_names(work, name):
    Path("m.onnx").rename(name)
    result = qtool.quantize(name, "c.npz")
    assert result.model_path.name == f"{Path(name).stem}.int8.onnx"
    assert result.model_path.is_file()


def test_paths_that_are_not_utf_8_are_refused_in_one_line(work):
    odd = os.fsdecode(b"odd\xff.onnx")
    try:
        Path(odd).write_bytes(Path("m.onnx").read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    for call in (
        lambda: qtool.quantize(odd, "c.npz"),
        lambda: qtool.quantize("m.onnx", "c.npz", output=odd, force=True),
        lambda: qtool.inspect(odd),
        lambda: qtool.evaluate("m.onnx", odd, "c.npz"),
    ):
        with pytest.raises(QtoolError, match="not a UTF-8 path"):
            call()


def test_samples_may_have_any_file_name(work):
    odd = os.fsdecode(b"odd\xff.npz")
    try:
        Path(odd).write_bytes(Path("c.npz").read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    done = run_cli("quantize", "m.onnx", "--calib", b"odd\xff.npz", "-q", "--json", "r.json", cwd=work)
    assert (done.returncode, done.stderr) == (0, "")
    args = ["eval", "m.onnx", "m.int8.onnx", "--data", b"odd\xff.npz", "--no-latency", "-q", "--json", "e.json"]
    done = run_cli(*args, cwd=work)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(Path("e.json").read_text())["sources"][0]["path"].startswith("odd")


def test_a_model_in_a_text_format_is_refused(work):
    onnx.save(onnx.load("m.onnx"), "t.textproto")
    with pytest.raises(ModelError, match="not an ONNX model"):
        qtool.quantize("t.textproto", "c.npz")


def test_a_binary_model_may_be_called_anything(work):
    Path("m.onnx").rename("m.json")
    assert qtool.quantize("m.json", "c.npz").model_path.name == "m.int8.onnx"


def test_a_dry_run_writes_nothing_and_minds_no_existing_output(work):
    Path("m.int8.onnx").write_bytes(b"the old result")
    before = snapshot(work)
    result = qtool.quantize("m.onnx", "c.npz", dry_run=True)
    assert (result.model_path, result.model, result.bytes_after) == (None, None, 0)
    assert result.quantized == 3
    assert snapshot(work) == before


def test_a_proto_is_quantized_in_memory(work):
    before = snapshot(work)
    result = qtool.quantize(mlp(), samples())
    assert result.model_path is None
    onnx.checker.check_model(result.model, full_check=True)
    assert snapshot(work) == before


def test_c44_what_the_model_says_about_itself_is_kept(work):
    proto = mlp()
    proto.producer_name, proto.producer_version, proto.domain = "maker", "1.2", "org.example"
    proto.model_version, proto.doc_string, proto.graph.doc_string = 7, "what it is", "the graph"
    proto.graph.node[0].doc_string = "the first"
    onnx.helper.set_model_props(proto, {"license": "Apache-2.0", "note": "ä"})
    onnx.save(proto, "p.onnx")
    qtool.quantize("p.onnx", "c.npz", output="q.onnx")
    made = onnx.load("q.onnx")
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(made, field) == getattr(proto, field)
    assert made.graph.doc_string == "the graph"
    assert made.graph.name == "g"
    keys = metadata(Path("q.onnx"))
    assert (keys["license"], keys["note"]) == ("Apache-2.0", "ä")
    assert keys["qtool.version"] == qtool.__version__
    assert json.loads(keys["qtool.config"])["format"] == "qlinear"
    assert len(keys["qtool.source.sha256"]) == 64
    assert len(json.loads(keys["qtool.calibration.sha256"])[0]) == 64
    assert str(work) not in "".join(keys.values())


def test_a_data_error_comes_before_anything_is_written(work):
    with pytest.raises(DataError):
        qtool.quantize("m.onnx", {"y": random(3, 8)})
    assert not Path("m.int8.onnx").exists()


def test_c44_keys_of_nodes_do_not_leak(work):
    """The notes that preparation leaves for planning are not part of the result."""
    nodes = [
        onnx.helper.make_node("Conv", ["x", "W"], ["a"], "conv"),
        onnx.helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["y"], "bn"),
    ]
    ones = np.ones(2, np.float32)
    weights = {"W": random(2, 1, 3, 3), "s": ones * 2, "b": ones, "m": ones * 0, "v": ones}
    proto = model(nodes, weights, inputs={"x": ["N", 1, 6, 6]}, outputs={"y": ["N", 2, 4, 4]})
    made = qtool.quantize(proto, {"x": random(4, 1, 6, 6)}).model
    assert not [entry.key for node in made.graph.node for entry in node.metadata_props]
