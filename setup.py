"""Build of the one extension, ``qtool._core``: baseline instruction set, OpenMP where the compiler has it.

Everything else about the package is in pyproject.toml. Switches (environment): QTOOL_NO_OPENMP=1 builds without
threads, QTOOL_CYTHON_DEBUG=1 turns bounds checks on, QTOOL_ANNOTATE=1 writes _core.html, QTOOL_SANITIZE=1 builds for
tests with the sanitizers of gcc and clang (.ci/run shows how to load such an extension).
"""

import os
import sys
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("QTOOL_CYTHON_DEBUG") == "1"
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "nonecheck": False,
    "cdivision": True,
}
# -ffp-contract=off: a fused multiply-add rounds once where ONNX rounds twice.
# No -march: the baseline is the floor of the ABI; faster kernels carry their own target attribute.
UNIX_FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
# the first error ends the process; Python's own -fwrapv would hide signed overflow
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SANITIZER_FLAGS = [*SANITIZERS, "-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv"]
MSVC_FLAGS = ["/O2", "/std:c11", "/fp:precise"]
HEADERS = [str(path) for path in sorted(Path("qtool/_kernels").glob("*"))]
NO_OPENMP = """
******************************************************************************
*  qtool: the compiler has no OpenMP ({why}).
*  The extension works, but runs on ONE thread.
*  Debian: apt-get install gcc   macOS: brew install libomp   Windows: MSVC 2022
******************************************************************************
"""


class BuildExt(build_ext):
    """build_ext that asks the compiler whether it has OpenMP before it uses it."""

    def build_extensions(self) -> None:
        """Choose the flags for this compiler, then build."""
        msvc = self.compiler.compiler_type == "msvc"
        flags = list(MSVC_FLAGS if msvc else UNIX_FLAGS)
        link: list[str] = []
        openmp = ["/openmp:llvm"] if msvc else ["-fopenmp"]
        if os.environ.get("QTOOL_NO_OPENMP") == "1":
            sys.stderr.write(NO_OPENMP.format(why="QTOOL_NO_OPENMP=1"))
        elif self._compiles(openmp, [] if msvc else openmp):
            flags += openmp
            link += [] if msvc else openmp
        else:
            sys.stderr.write(NO_OPENMP.format(why="a test program did not build"))
        if os.environ.get("QTOOL_SANITIZE") == "1":
            flags += SANITIZER_FLAGS
            link += SANITIZERS
        for extension in self.extensions:
            extension.extra_compile_args = flags + extension.extra_compile_args
            extension.extra_link_args = link + extension.extra_link_args
        super().build_extensions()

    def _compiles(self, compile_flags: list[str], link_flags: list[str]) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.c"
            source.write_text("#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n")
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=compile_flags)
                self.compiler.link_executable(objects, str(Path(folder) / "probe"), extra_postargs=link_flags)
            except Exception:  # distutils raises CompileError or LinkError, whose home moved between versions
                return False
            return True


setup(
    cmdclass={"build_ext": BuildExt},
    ext_modules=cythonize(
        # depends=: without it an edit of a header rebuilds nothing
        [Extension("qtool._core", ["qtool/_core.pyx"], include_dirs=["qtool"], depends=HEADERS)],
        compiler_directives=DIRECTIVES,
        annotate=os.environ.get("QTOOL_ANNOTATE") == "1",
    ),
)
