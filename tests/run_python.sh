#!/bin/bash
# run_python.sh: the Python package as a user gets it: `make wheel`, `pip install --no-index` into a
# fresh environment, without a compiler and without NumPy; then plans, training, Ctrl-C, resuming,
# the guide's notebook.
#
#   bash tests/run_python.sh     from the repository's root, after make; see run_lib.sh
#   PYTHON_NUMPY=PYTHON          a Python that has NumPy, for the same tests with it
#   PYTHONS='PYTHON...'          other versions of Python; unset: those of pyenv and the system
# shellcheck source=tests/run_lib.sh disable=SC2034,SC2154
. tests/run_lib.sh

python=$(command -v python3 || true)
export LEVEL=1 # of compression
# needs WHAT: skips the checks that follow on a machine without it.
usable() { [ -n "$python" ] && "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; }
if ! usable || sanitized; then
    for what in wheel install tests interrupt notebook; do
        skipped=$((skipped + 1))
        printf 'skip  %-58s %s\n' "python: $what" 'no python3 of 3.9 or later with venv and pip, or a binary with a sanitizer'
    done
    passed=1
    summary
    exit
fi

syntax() {
    "$python" - <<'END'
import ast, glob
files = sorted(glob.glob("python/plimsoll/*.py") + glob.glob("tests/python/*.py") + ["tools/wheel.py", "tools/site.py"])
for path in files:
    with open(path, encoding="utf-8") as f:
        ast.parse(f.read(), path, feature_version=(3, 9))
print(len(files), "files")
END
}
check 'the syntax is that of Python 3.9' syntax

# Every public name is documented, and the guide names it.
documented() {
    PLIMSOLL_LIBRARY=$BUILD/libplimsoll.so.0 PYTHONPATH=python "$python" - <<'END'
import inspect, plimsoll, sys
guide = open("docs/guides/python.md", encoding="utf-8").read()
missing = []
for name in plimsoll.__all__:
    x = getattr(plimsoll, name)
    if inspect.isclass(x) or inspect.isfunction(x):
        if not (x.__doc__ or "").strip():
            missing.append(name + ": no docstring")
        for part, f in vars(x).items() if inspect.isclass(x) and not issubclass(x, BaseException) else ():
            if inspect.isfunction(f) and not part.startswith("_") and not (f.__doc__ or "").strip():
                missing.append(f"{name}.{part}: no docstring")
    if name != "__version__" and name not in guide:
        missing.append(name + ": not in docs/guides/python.md")
print(*missing, f"{len(plimsoll.__all__)} names", sep="\n")
sys.exit(bool(missing))
END
}
check 'docstrings, and the guide names all' documented

wheel() {
    make -s BUILD="$BUILD" wheel >"$tmp/made" || return 1
    local wheel
    wheel=$(ls "$BUILD"/wheel/*.whl)
    (umask 077 && TZ=Asia/Tokyo "$python" tools/wheel.py "$BUILD" "$tmp") >/dev/null && cmp "$wheel" "$tmp/$(basename "$wheel")" || return 1
    ! "$python" -m zipfile -l "$wheel" | grep -qE 'libc\.so|libm\.so|ld-linux' || return 1
    cat "$tmp/made"
}
check 'make wheel, twice the same bytes' wheel

# Paths of this machine do not belong into a release.
no_paths() {
    mkdir "$tmp/unpacked" && "$python" -m zipfile -e "$tmp"/*.whl "$tmp/unpacked" || return 1
    ! grep -rlF "$PWD" "$tmp/unpacked" && echo "none in $(find "$tmp/unpacked" -type f | wc -l) files"
}
check 'the wheel has no paths of this folder' no_paths

# What the CUDA plug-in is linked with is the system's or pip's, from no folder of this machine.
cuda_plug_in() {
    local plug_in=$tmp/unpacked/plimsoll/lib/plimsoll-cuda.so
    [ -f "$plug_in" ] || { echo 'the build has no CUDA'; return 77; }
    readelf -dW "$plug_in" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(libcublasLt|libcudart|libstdc\+\+|libgcc_s|libgomp|libm|libc|ld-linux[^.]*|libdl|libpthread)\.so' && return 1
    readelf -dW "$plug_in" | sed -n 's/.*RUNPATH.*\[\(.*\)\]/\1/p' | tr : '\n' | grep -vE '^(\$ORIGIN/|/usr/local/cuda/lib64$)' && return 1
    grep -h '^Requires-Dist: nvidia-' "$tmp"/unpacked/*.dist-info/METADATA
}
check 'the CUDA plug-in of the wheel' cuda_plug_in

# Nothing of the caller's environment but how threads wait.
clean=(env -i HOME="$tmp" OMP_WAIT_POLICY=passive)
bare() { (cd "$tmp" && "${clean[@]}" PATH="$tmp/venv/bin:/usr/bin:/bin" LC_ALL=C.UTF-8 "$@"); }
install() {
    "$python" -m venv "$tmp/venv" && bare pip install -q --no-index --disable-pip-version-check "$tmp"/*.whl || return 1
    ! bare python -c 'import numpy' 2>/dev/null || { echo 'the environment has NumPy'; return 1; }
    bare plimsoll --version | head -n 1
}
check 'pip install --no-index into a fresh environment' install

# All that is loaded is in the wheel, or glibc.
loaded() {
    bare ldd "$(echo "$tmp"/venv/lib/python3*/site-packages/plimsoll/bin/plimsoll)" >"$tmp/ldd" || return 1
    ! grep -vE 'site-packages/plimsoll|linux-vdso|ld-linux|/(libc|libm|libpthread|libdl)\.so' "$tmp/ldd" && echo "$(grep -c site-packages "$tmp/ldd") libraries from the wheel"
}
check 'the program loads nothing else' loaded

first_plan() {
    local begun=$SECONDS
    bare python -c 'import plimsoll; print(repr(plimsoll.plan({"model": {"preset": "llama-tiny"}}, memory="1GiB")))' && [ $((SECONDS - begun)) -lt 60 ]
}
check 'a first plan within a minute' first_plan

tests() { bare python "$PWD/tests/python/test_package.py" "$PWD" >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }; sed -n 's/^Ran/&/p' "$tmp/out"; }
check 'the tests of the package' tests

interrupt() {
    head -c 20000 README.md >"$tmp/text"
    local script=$PWD/tests/python/interrupted.py
    (cd "$tmp" && exec "${clean[@]}" "$tmp/venv/bin/python" "$script" "$tmp/text" "$tmp/run") >"$tmp/out" 2>&1 &
    local p=$! rc=0
    stopped="$stopped $p"
    for _ in $(seq 600); do grep -q '^3$' "$tmp/out" && break; sleep 0.1; done
    kill -INT "$p"
    wait "$p" || rc=$?
    [ "$rc" = 130 ] && grep -q '^saved .*Resume with: plimsoll.train' "$tmp/out" || { echo "status $rc"; cat "$tmp/out"; return 1; }
    bare python "$script" "$tmp/text" "$tmp/run" resume >"$tmp/rest" 2>&1 || { cat "$tmp/rest"; return 1; }
    bare python "$script" "$tmp/text" "$tmp/whole" >/dev/null 2>&1 || return 1
    same "$tmp/run/model/model.safetensors" "$tmp/whole/model/model.safetensors" && grep '^saved' "$tmp/out" && tail -n 1 "$tmp/rest"
}
check 'Ctrl-C saves, resume=True goes on, the same bits' interrupt

# A library of another version: both are named.
other_version() {
    command -v "${CC:-cc}" >/dev/null || { echo 'no compiler for the other library'; return 77; }
    echo 'const char *pl_version(void) { return "9.8.7"; }' >"$tmp/other.c"
    ${CC:-cc} -shared -fPIC "$tmp/other.c" -o "$tmp/other.so" || return 1
    bare env PLIMSOLL_LIBRARY="$tmp/other.so" python -c 'import plimsoll' 2>"$tmp/err" && return 1
    grep 'ImportError: plimsoll 0.1.0 .* version 9.8.7' "$tmp/err"
}
check 'a library of another version is refused' other_version

# Other versions of Python on this machine: some of the tests with each, from the unpacked wheel.
others() {
    local other version found=
    for other in ${PYTHONS:-"$HOME"/.pyenv/versions/3.*/bin/python3 /usr/bin/python3}; do
        "$other" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || continue
        version=$("$other" -c 'import platform; print(platform.python_version())')
        [ "$version" != "$("$python" -c 'import platform; print(platform.python_version())')" ] || continue
        (cd "$tmp" && "${clean[@]}" PYTHONPATH="$tmp/unpacked" "$other" "$OLDPWD/tests/python/test_package.py" "$OLDPWD" Layout Steps Models) >"$tmp/out" 2>&1 || { echo "$version"; cat "$tmp/out"; return 1; }
        found="$found $version"
    done
    [ -n "$found" ] || { echo 'no other Python of 3.9 or later'; return 77; }
    echo "$found"
}
check 'other versions of Python' others

notebook() { bare python "$PWD/tests/python/run_notebook.py" "$PWD/examples/python.ipynb" >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }; tail -n 1 "$tmp/out"; }
check 'the notebook' notebook

numpy() {
    local with=${PYTHON_NUMPY:-}
    [ -n "$with" ] && "$with" -c 'import numpy' 2>/dev/null || { echo 'PYTHON_NUMPY names no Python with NumPy'; return 77; }
    (cd "$tmp" && PYTHONPATH="$(echo "$tmp"/venv/lib/python3*/site-packages)" "$with" "$OLDPWD/tests/python/test_package.py" "$OLDPWD") >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    sed -n 's/^Ran/with NumPy: &/p' "$tmp/out"
}
check 'the tests of the package with NumPy' numpy

summary
