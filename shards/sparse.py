"""Files whose holes take no disk: a node's weights file has the full logical size and only its own ranges in it."""

from __future__ import annotations

import sys
from pathlib import Path


def create(path: Path, size: int) -> None:
    """Make a file of `size` bytes that occupies (next to) nothing; an existing file keeps what it holds.

    POSIX file systems leave a hole when a file is extended. NTFS does so only for files marked as sparse; where the
    file system knows no sparse files (FAT), the file is simply large.

    Raises:
        OSError: the file cannot be made.
    """
    with path.open("ab") as file:
        if sys.platform == "win32":
            import msvcrt

            _mark_sparse(msvcrt.get_osfhandle(file.fileno()))
        file.truncate(size)


def allocated_bytes(path: Path) -> int:
    """Bytes the file occupies on disk."""
    if sys.platform == "win32":
        return _compressed_size(path)
    return path.stat().st_blocks * 512


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _FSCTL_SET_SPARSE = 0x900C4  # winioctl.h
    _INVALID_FILE_SIZE = 0xFFFFFFFF
    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel32.DeviceIoControl.argtypes = [
        wintypes.HANDLE,
        wintypes.DWORD,
        wintypes.LPVOID,
        wintypes.DWORD,
        wintypes.LPVOID,
        wintypes.DWORD,
        wintypes.LPDWORD,
        wintypes.LPVOID,
    ]
    _kernel32.GetCompressedFileSizeW.argtypes = [wintypes.LPCWSTR, wintypes.LPDWORD]
    _kernel32.GetCompressedFileSizeW.restype = wintypes.DWORD

    def _mark_sparse(handle: int) -> None:
        returned = wintypes.DWORD()
        # refused by file systems without sparse files: the file then works all the same, it is only larger
        _kernel32.DeviceIoControl(handle, _FSCTL_SET_SPARSE, None, 0, None, 0, ctypes.byref(returned), None)

    def _compressed_size(path: Path) -> int:
        high = wintypes.DWORD()
        ctypes.set_last_error(0)
        low = _kernel32.GetCompressedFileSizeW(str(path), ctypes.byref(high))
        if low == _INVALID_FILE_SIZE and ctypes.get_last_error():
            raise ctypes.WinError(ctypes.get_last_error())
        return int(high.value << 32 | low)
