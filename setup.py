"""The native reader: optional, since the Python reader stands in where it cannot be built."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "traceq.kineto._scan",
            ["traceq/kineto/_scan.cpp"],
            depends=sorted(glob("traceq/kineto/scanner/*.hpp")),
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-std=c++17", "-O3", "-g0"],
            language="c++",
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
