#!/usr/bin/env python3
"""Makes a release: dist/ with the source archive, the program archive, the Python wheel, a Debian
package, an SBOM (SPDX) and SHA256SUMS. `make dist` calls it after the build.

    tools/dist.py BUILD OUT

The same commit gives the same bytes, in any folder and on any day (tools/reproduce.sh shows it):
times are those of the commit or SOURCE_DATE_EPOCH, files are sorted, symbols are stripped. Reads no
network. Needs git, GNU tar, gzip, binutils, and dpkg for the package and for licence texts.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import wheel

ROOT = wheel.ROOT
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el", "riscv64": "riscv64"}


def put(root, name, data, mode=0o644):
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    os.chmod(path, mode)


def settle(root):
    """Gives all files and folders of a tree the same time and modes that depend on no umask."""
    when = wheel.date()
    for folder, _, names in os.walk(root):
        os.chmod(folder, 0o755)
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)
            os.utime(path, (when, when), follow_symlinks=False)
        os.utime(folder, (when, when))


def pack(folder, name, out):
    """Writes the tree `name` of a folder as a compressed archive."""
    settle(os.path.join(folder, name))
    tar = subprocess.Popen(["tar", "--sort=name", f"--mtime=@{wheel.date()}", "--owner=0", "--group=0",
                            "--numeric-owner", "--format=gnu", "-C", folder, "-cf", "-", name], stdout=subprocess.PIPE)
    with open(out, "wb") as f:
        subprocess.run(["gzip", f"-{wheel.LEVEL}n"], stdin=tar.stdout, stdout=f, check=True)
    tar.stdout.close()
    if tar.wait():
        sys.exit("tar failed")


def source(version, out):
    """Archives what the commit has: nothing that is only in the folder."""
    name = f"plimsoll-{version}"
    path = os.path.join(out, f"{name}.tar.gz")
    git = subprocess.Popen(["git", "-C", ROOT, "archive", "--format=tar", f"--prefix={name}/", "HEAD"],
                           stdout=subprocess.PIPE)
    with open(path, "wb") as f:
        subprocess.run(["gzip", f"-{wheel.LEVEL}n"], stdin=git.stdout, stdout=f, check=True)
    git.stdout.close()
    if git.wait():
        sys.exit("git archive failed")
    return path


def extras(root, build):
    """Adds manual pages, completion, documentation and examples below share."""
    environment = dict(os.environ, BUILD=build, SOURCE_DATE_EPOCH=str(wheel.date()))
    subprocess.run(["tools/extras.sh", os.path.join(root, "share")], cwd=ROOT, env=environment, check=True)
    docs = os.path.join(root, "share", "doc", "plimsoll")
    for name in ("LICENSE", "THIRD-PARTY.md", "README.md", "CHANGELOG.md"):
        put(docs, name, wheel.read(name))
    listed = wheel.run("git", "-C", ROOT, "ls-files", "docs", "examples").split()
    for name in listed:
        put(docs, name, wheel.read(*name.split("/")))


def binaries(root, build, folder, library_folder="lib"):
    """Adds program, library, plug-ins and headers; `folder`: where program and library are linked."""
    os.makedirs(root, exist_ok=True)
    put(root, "bin/plimsoll", wheel.stripped(os.path.join(folder, "plimsoll")), 0o755)
    put(root, f"{library_folder}/libplimsoll.so.0",
        wheel.stripped(os.path.join(folder, "libplimsoll.so.0")), 0o755)
    os.symlink("libplimsoll.so.0", os.path.join(root, library_folder, "libplimsoll.so"))
    for plugin, path in wheel.plugins(build):
        put(root, f"{library_folder}/{plugin}", wheel.stripped(path), 0o755)
    for header in ("plimsoll.h", "plimsoll_ops.h"):
        put(root, f"include/{header}", wheel.read("include", header))


def program(version, build, libraries, out):
    """Archives the program with all that is not in glibc: it runs where it is unpacked."""
    name = f"plimsoll-{version}-linux-{platform.machine()}"
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, name)
        binaries(root, build, os.path.join(build, "wheel"))
        for library, path in libraries:
            put(root, f"lib/{library}", wheel.stripped(path), 0o755)
        extras(root, build)
        for licence, data in wheel.licences(libraries).items():
            put(root, f"share/doc/plimsoll/licenses/{licence}", data)
        path = os.path.join(out, f"{name}.tar.gz")
        pack(folder, name, path)
    return path


def owners(libraries):
    """Returns the Debian packages of libraries, with versions: {package: version}."""
    known = wheel.packages([path for _, path in libraries])
    for _, path in libraries:
        if path not in known and shutil.which("dpkg"):
            print(f"{path}: of no Debian package, so the .deb does not depend on it")
    if not known:
        return {}
    said = wheel.run("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *sorted(set(known.values())))
    return dict(line.split() for line in said.splitlines())


def debian(version, build, libraries, packages, out):
    """Makes a package that uses the system's libraries."""
    if not shutil.which("dpkg-deb") or not packages:
        print("no dpkg here: no Debian package is made")
        return None
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    path = os.path.join(out, f"plimsoll_{version}_{architecture}.deb")
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "root")
        usr = os.path.join(root, "usr")
        binaries(usr, build, build)
        extras(usr, build)
        zsh = os.path.join(usr, "share", "zsh")
        shutil.move(os.path.join(zsh, "site-functions"), os.path.join(zsh, "vendor-completions"))
        put(usr, "share/doc/plimsoll/copyright", wheel.read("LICENSE"))
        for base, _, names in os.walk(os.path.join(usr, "share", "man")):
            for name in names:
                page = os.path.join(base, name)
                subprocess.run(["gzip", "-9n", page], check=True)
        major, minor = wheel.glibc([os.path.join(build, "plimsoll"), os.path.join(build, "libplimsoll.so.0")])
        direct = [(n, p) for n, p in libraries if n in wheel.asked(os.path.join(build, "plimsoll"))]
        depends = ", ".join([f"libc6 (>= {major}.{minor})", *sorted(owners(direct))])
        size = sum(os.path.getsize(os.path.join(b, n)) for b, _, names in os.walk(usr) for n in names) // 1024
        put(root, "DEBIAN/control", f"""Package: plimsoll
Version: {version}
Architecture: {architecture}
Maintainer: The Plimsoll authors <plimsoll@localhost>
Installed-Size: {size}
Depends: {depends}
Suggests: openmpi-bin, ffmpeg
Section: science
Priority: optional
Description: trains segmentation and vision-language models in the memory you have
 Plimsoll finds the fastest training step that fits a memory budget, shows
 where every byte goes, and then runs exactly that: in C, on CPUs and NVIDIA GPUs.
""".encode())
        put(root, "DEBIAN/triggers", b"activate-noawait ldconfig\n")
        settle(root)
        environment = dict(os.environ, SOURCE_DATE_EPOCH=str(wheel.date()))
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{min(wheel.LEVEL - 1, 6)}", "--build", root, path],
                       env=environment, check=True, stdout=subprocess.DEVNULL)
    return path


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def sbom(version, libraries, packages, files, out):
    """Writes what the archives hold, as SPDX."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wheel.date()))
    parts = [{"name": name, "SPDXID": f"SPDXRef-{name}", "versionInfo": found, "supplier": "Organization: Debian",
              "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
              "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
              "comment": "licence text: share/doc/plimsoll/licenses of the program archive"}
             for name, found in sorted(packages.items())]
    own = {"name": "plimsoll", "SPDXID": "SPDXRef-plimsoll", "versionInfo": version, "downloadLocation": "NOASSERTION",
           "filesAnalyzed": False, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
           "copyrightText": "NOASSERTION"}
    archives = [{"fileName": f"./{os.path.basename(path)}", "SPDXID": f"SPDXRef-file-{i}",
                 "checksums": [{"algorithm": "SHA256", "checksumValue": digest(path)}],
                 "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION"} for i, path in enumerate(files)]
    key = hashlib.sha256("".join(a["checksums"][0]["checksumValue"] for a in archives).encode()).hexdigest()
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"plimsoll-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/plimsoll-{version}-{key[:32]}",
        "creationInfo": {"created": created, "creators": ["Tool: tools/dist.py"]},
        "packages": [own, *parts], "files": archives,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                           "relatedSpdxElement": "SPDXRef-plimsoll"}] +
                         [{"spdxElementId": "SPDXRef-plimsoll", "relationshipType": "DYNAMIC_LINK",
                           "relatedSpdxElement": p["SPDXID"]} for p in parts] +
                         [{"spdxElementId": a["SPDXID"], "relationshipType": "GENERATED_FROM",
                           "relatedSpdxElement": "SPDXRef-plimsoll"} for a in archives]}
    path = os.path.join(out, f"plimsoll-{version}.spdx.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(document, f, indent=1)
        f.write("\n")
    assert len(libraries) >= len(parts)
    return path


def main():
    build, out = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    version = wheel.version()
    if wheel.run("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no"):
        print("the folder has changes that no commit has: the source archive lacks them", file=sys.stderr)
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(out):
        if name.startswith("plimsoll") or name == "SHA256SUMS":
            os.remove(os.path.join(out, name))
    made, libraries = wheel.make(build, out)
    packages = owners(libraries)
    files = [source(version, out), program(version, build, libraries, out), made,
             debian(version, build, libraries, packages, out)]
    files = sorted(f for f in files if f)
    files.append(sbom(version, libraries, packages, files, out))
    with open(os.path.join(out, "SHA256SUMS"), "w", encoding="utf-8") as f:
        for path in files:
            f.write(f"{digest(path)}  {os.path.basename(path)}\n")
    for path in files:
        print(f"{os.path.getsize(path):>12,}  {os.path.relpath(path)}")


main()
