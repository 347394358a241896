#!/usr/bin/env python3
"""Builds the Python wheel: the package of python/, the program, the library, and the libraries that
both link with. Reads no network and needs only the standard library and objdump (binutils).

    make wheel                           build/wheel/plimsoll-VERSION-py3-none-PLATFORM.whl

The same sources give the same bytes: files are sorted, and their time is SOURCE_DATE_EPOCH, or that
of the last commit. LEVEL sets the level of compression, 1 to 9, for tools/dist.py too; 9 by default.
"""

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LEVEL = int(os.environ.get("LEVEL", 9))
# Every Linux has these; glibc is why the wheel has a platform tag.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux|libc|libm|libpthread|libdl|librt|libutil|libresolv)[.-]")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def date():
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    try:
        return int(run("git", "-C", ROOT, "log", "-1", "--format=%ct"))
    except (subprocess.CalledProcessError, OSError, ValueError):
        return 315532800  # 1980, the first that a zip can hold


def version():
    with open(os.path.join(ROOT, "include", "plimsoll.h"), encoding="utf-8") as f:
        return re.search(r'define PL_VERSION "(.*)"', f.read()).group(1)


def asked(path):
    """Lists the names of the libraries that a file itself asks for."""
    lines = run("readelf", "-dW", path).splitlines()
    return [line.split("[")[1].split("]")[0] for line in lines if "(NEEDED)" in line]


def needed(path, own):
    """Lists (name, path) of the libraries that a file is linked with, their own included, but for those
    that all systems have. Libraries in the folder `own` come before the system's."""
    system = {}
    for line in run("ldd", path).splitlines():
        words = line.split()
        if "=>" in words and "not found" not in line:
            system[words[0]] = os.path.realpath(words[2])
    found, open_ = {}, asked(path)
    while open_:
        name = open_.pop()
        if name in found or SYSTEM.match(name):
            continue
        ours = os.path.join(own, name)
        if not os.path.exists(ours) and name not in system:
            sys.exit(f"{path}: {name} is not found")
        found[name] = ours if os.path.exists(ours) else system[name]
        open_ += asked(found[name])
    return sorted(found.items())


def glibc(paths):
    """Returns the newest version of glibc's symbols that the files need."""
    newest = (2, 17)
    for path in paths:
        for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", path)):
            newest = max(newest, (int(major), int(minor)))
    return newest


def packages(paths):
    """Returns the Debian packages of files, as dpkg names them, by path; without one a path is left out."""
    listed = {p.replace("/usr/", "/", 1): p for p in paths}  # merged /usr: some packages list /lib
    listed.update((p, p) for p in paths)
    try:
        said = subprocess.run(["dpkg", "-S", *listed], capture_output=True, text=True).stdout
    except OSError:
        return {}
    found = {}
    for line in said.splitlines():
        owners, _, path = line.rpartition(": ")
        if path in listed:
            found[listed[path]] = owners.split(",")[0]
    return found


def licences(libraries):
    """Returns the licence texts of bundled libraries, by file name, where the system has them."""
    texts = {}
    for owner in packages([path for _, path in libraries]).values():
        owner = owner.split(":")[0]
        source = f"/usr/share/doc/{owner}/copyright"
        if os.path.exists(source):
            with open(source, "rb") as f:
                texts[f"{owner}.txt"] = f.read()
    return texts


def stripped(path):
    """Returns a program or library without debugging symbols, whose build id depends on the folder."""
    with tempfile.NamedTemporaryFile() as f:
        subprocess.run(["strip", "--strip-unneeded", "-R", ".note.gnu.build-id", "-o", f.name, path], check=True)
        with open(f.name, "rb") as result:
            return result.read()


def read(*parts):
    with open(os.path.join(ROOT, *parts), "rb") as f:
        return f.read()


def plugins(build):
    """Lists (name, path) of the plug-ins that a build has; the CUDA one as it is linked for a wheel."""
    places = {"plimsoll-cuda.so": os.path.join(build, "wheel"), "plimsoll-mpi.so": build}
    return [(name, os.path.join(places[name], name)) for name in sorted(places)
            if os.path.exists(os.path.join(build, name))]


def cuda_packages(own):
    """Returns the lines of METADATA about CUDA: pip's packages with the libraries that the plug-in needs."""
    path = own.get("plimsoll/lib/plimsoll-cuda.so")
    if not path:
        return ""
    major = int(re.search(r"libcudart\.so\.(\d+)", "\n".join(asked(path))).group(1))
    suffix, bound = ("", f" >={major}, <{major + 1}") if major >= 13 else (f"-cu{major}", "")
    return "Provides-Extra: cuda\n" + "".join(f"Requires-Dist: nvidia-{name}{suffix}{bound} ; extra == 'cuda'\n"
                                              for name in ("cublas", "cuda-runtime"))


def make(build, out):
    """Writes the wheel into a folder; returns its path and the bundled libraries."""
    linked = os.path.join(build, "wheel")
    files = {}
    package = os.path.join(ROOT, "python", "plimsoll")
    for name in sorted(os.listdir(package)):
        if name.endswith(".py") or name == "py.typed":
            files[f"plimsoll/{name}"] = read("python", "plimsoll", name)

    own = {"plimsoll/bin/plimsoll": os.path.join(linked, "plimsoll"),
           "plimsoll/lib/libplimsoll.so.0": os.path.join(linked, "libplimsoll.so.0")}
    for plugin, path in plugins(build):
        own[f"plimsoll/lib/{plugin}"] = path
    # What the plug-ins link with is the system's, or pip's: they are opened where it is there.
    libraries = sorted({**dict(needed(own["plimsoll/bin/plimsoll"], linked)),
                        **dict(needed(own["plimsoll/lib/libplimsoll.so.0"], linked))}.items())
    for name, path in own.items():
        files[name] = stripped(path)
    for name, path in libraries:
        files[f"plimsoll/lib/{name}"] = stripped(path)

    machine = platform.machine()
    major, minor = glibc([*own.values(), *(path for _, path in libraries)])
    tag = f"py3-none-manylinux_{major}_{minor}_{machine}"
    v = version()
    info = f"plimsoll-{v}.dist-info"
    files[f"{info}/METADATA"] = (f"""Metadata-Version: 2.1
Name: plimsoll
Version: {v}
Summary: Trains segmentation and vision-language models in the memory you have
License: Apache-2.0
Requires-Python: >=3.9
Classifier: Programming Language :: Python :: 3
Classifier: Operating System :: POSIX :: Linux
Provides-Extra: numpy
Requires-Dist: numpy ; extra == 'numpy'
{cuda_packages(own)}Description-Content-Type: text/markdown

""").encode() + read("docs", "guides", "python.md")
    files[f"{info}/WHEEL"] = ("Wheel-Version: 1.0\nGenerator: tools/wheel.py\nRoot-Is-Purelib: false\n"
                              f"Tag: {tag}\n").encode()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nplimsoll = plimsoll.__main__:main\n"
    files[f"{info}/licenses/LICENSE"] = read("LICENSE")
    files[f"{info}/licenses/THIRD-PARTY.md"] = read("THIRD-PARTY.md")
    for name, data in licences(libraries).items():
        files[f"{info}/licenses/{name}"] = data

    rows = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(files[name])}\n")
    files[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()

    os.makedirs(out, exist_ok=True)
    for name in os.listdir(out):
        if name.startswith("plimsoll-") and name.endswith(".whl"):
            os.remove(os.path.join(out, name))
    path = os.path.join(out, f"plimsoll-{v}-{tag}.whl")
    when = time.gmtime(max(date(), 315532800))[:6]
    with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as z:
        for name in sorted(files, key=lambda n: (n.startswith(info), n)):
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            runs = "/bin/" in name or ".so" in name
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            z.writestr(entry, files[name])
    os.replace(path + ".new", path)
    return path, libraries


if __name__ == "__main__":
    made, bundled = make(sys.argv[1], sys.argv[2])
    print(f"{made}: {os.path.getsize(made) / 2**20:.1f} MiB, {len(bundled)} libraries bundled")
