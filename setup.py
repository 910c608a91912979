"""Build the native reader and longest paths, both optional: Python does the same where they cannot be built."""

import os
from glob import glob
from pathlib import Path
from zlib import crc32

from setuptools import Extension, setup

SOURCES = ["traceq/kineto/_scan.cpp", *sorted(glob("traceq/kineto/scanner/*.hpp"))]
DIGEST = f"{crc32(b''.join(Path(source).read_bytes() for source in SOURCES)):08x}"  # native_columns.py compares it
OPTIONAL = "TRACEQ_NEEDS_EXTENSIONS" not in os.environ  # a wheel of a platform has them

setup(
    ext_modules=[
        Extension(
            "traceq.kineto._scan",
            SOURCES[:1],
            depends=SOURCES[1:],
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("TRACEQ_SOURCES", f'"{DIGEST}"')],
            extra_compile_args=["-std=c++17", "-O3", "-g0"],
            language="c++",
            py_limited_api=True,
            optional=OPTIONAL,
        ),
        Extension(
            "traceq.causes._paths",
            ["traceq/causes/_paths.cpp"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-std=c++17", "-O3", "-g0"],
            language="c++",
            py_limited_api=True,
            optional=OPTIONAL,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
