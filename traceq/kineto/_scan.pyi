from collections.abc import Callable
from mmap import mmap

MORE: int
FULL: int
PADDING: int
BY_NAME: int
COLUMNS: str
SOURCES: str

class Scanner:
    def __new__(cls, categorise: Callable[[str, str | None], int], decode: Callable[[bytes], bytes], /) -> Scanner: ...
    def scan(
        self,
        text: mmap | bytearray,
        start: int,
        stop: int,
        comma_due: bool,
        columns: tuple[memoryview, ...],
        row: int,
        /,
    ) -> tuple[int, int, int, bool]: ...
    def take(self) -> tuple[int, int, list[bytes], bytes, bytes, bytes, bytes, bytes]: ...
    def intern(self, text: bytes, /) -> int: ...
    def strings(self) -> list[str]: ...
    def messages(self) -> list[bytes]: ...

class ValueScanner:
    def __new__(cls, keys: tuple[bytes, ...], /) -> ValueScanner: ...
    def scan(self, text: mmap | bytearray, start: int, stop: int, comma_due: bool, /) -> tuple[int, int, bool]: ...
    def columns(
        self, /
    ) -> tuple[int, bytes, list[tuple[int, bytes, bytes, bytes, bytes]], list[bytes], list[bytes]]: ...
