# Sourced by launch/lab and launch/test: finds the Python environment that holds collectlab, or makes it.
#
# An active environment (VIRTUAL_ENV, CONDA_PREFIX) that holds collectlab is used as it is. Otherwise the
# environment is CHECKOUT/.venv, or, where the checkout cannot be written, a folder in the user's cache. Its
# folder launch/ holds a lock, pip's log and a stamp; the stamp is written last, so an environment without one
# is half made and is made again.

say() { printf 'collectlab: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Python 3.11 does not start under LC_ALL=C where the checkout's path, which .venv names, has other letters than ASCII.
case ${LC_ALL-} in C | POSIX) export LC_ALL=C.UTF-8 ;; esac

checkout=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P) || exit 1

# usable_home: JupyterLab, pip, Matplotlib and the runs write below HOME; containers often start without one.
usable_home() {
    local home=${HOME:-$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6)} problem
    if [ -z "$home" ] || [ ! -d "$home" ] || [ ! -w "$home" ]; then
        local unusable=${home:-not set}
        home=${TMPDIR:-/tmp}/collectlab-$(id -u)
        mkdir -p -m 700 -- "$home" 2>/dev/null
        [ -O "$home" ] && [ -w "$home" ] ||
            die "the home directory ($unusable) cannot be written, and neither can $home; set HOME to a folder that can"
        say "the home directory ($unusable) cannot be written; using HOME=$home"
    fi
    export HOME=$home
    problem=$(export LC_ALL=C; head -c 1000000 /dev/zero 2>&1 > "$home/.collectlab-$$")
    rm -f -- "$home/.collectlab-$$"
    ! full_disk "$problem" ||
        die "the disk of the home directory is full: no room in $home for runs and notebooks; make some," \
            "or set HOME to a folder that has room, and run this again"
}

# inspect PYTHON EXTRA: sets version to PYTHON's; asked to a digest of what pyproject.toml asks for; home to where
# PYTHON's collectlab comes from ("here" for this checkout, "installed", another checkout's path, or nothing); lacks
# to what pyproject.toml asks for and is not there.
inspect() {
    local facts
    facts=$(cd / && "$1" -c "$INSPECT" "$checkout" "$2" 2>/dev/null) || return
    { read -r version; read -r asked; read -r home; read -r lacks; } <<<"$facts"$'\n'
}

INSPECT='
import hashlib, importlib.metadata, importlib.util, json, os, re, sys, sysconfig, tomllib

checkout, extra = sys.argv[1:]
print("%d.%d.%d" % sys.version_info[:3])

with open(os.path.join(checkout, "pyproject.toml"), "rb") as file:
    pyproject = tomllib.load(file)
project = pyproject["project"]
print(hashlib.sha256(json.dumps([project, pyproject["build-system"]]).encode()).hexdigest())

spec = importlib.util.find_spec("collectlab")
home = os.path.dirname(os.path.dirname(os.path.realpath(spec.origin))) if spec and spec.origin else ""
if home == os.path.realpath(checkout):
    home = "here"
elif home and re.search(r"/(site|dist)-packages$", home):
    home = "installed"
print(home)

wanted = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])


def lacks(name):
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        # the MPICH of conda carries no Python metadata
        return not (name == "mpich" and os.path.exists(os.path.join(sysconfig.get_path("scripts"), "mpiexec")))
    return False


print(*filter(lacks, (re.match(r"[\w.-]+", requirement)[0] for requirement in wanted)))
'

# use PREFIX: what runs from here on runs in the environment at PREFIX.
use() {
    python=$1/bin/python
    export PATH=$1/bin:$PATH JUPYTER_PREFER_ENV_PATH=1
}

# use_active EXTRA: uses the active environment if it holds collectlab. One that launch/ made is not looked at
# here: it may be half made.
use_active() {
    local prefix version asked home lacks
    for prefix in "${VIRTUAL_ENV-}" "${CONDA_PREFIX-}"; do
        [ -n "$prefix" ] && [ -x "$prefix/bin/python" ] && [ ! -e "$prefix/launch/lock" ] || continue
        inspect "$prefix/bin/python" "$1" || continue
        case $home in
        '') continue ;;
        /*)
            say "the active environment $prefix holds the collectlab of another checkout, $home: not used"
            continue
            ;;
        esac
        [ -z "$lacks" ] || die "the active environment $prefix holds collectlab but lacks ${lacks// /, };" \
            "run: $prefix/bin/python -m pip install ${lacks}   (or deactivate it: a separate environment is made then)"
        say "using the active environment $prefix (Python $version)"
        use "$prefix"
        return 0
    done
    return 1
}

# stamp_for EXTRA VERSION [ASKED]: what the stamp of a finished environment says.
stamp_for() {
    printf '%s\n' "environment $environment" "checkout $checkout" "python $2" "pyproject.toml ${3-}" "extra $1"
}

# ready EXTRA: whether the environment is finished, unchanged since, and has what EXTRA asks for.
ready() {
    local stamp version asked home lacks
    stamp=$(cat -- "$environment/launch/stamp" 2>/dev/null) || return 1
    inspect "$environment/bin/python" "$1" && [ "$home" = here ] && [ -z "$lacks" ] || return 1
    [ "$stamp" = "$(stamp_for "$1" "$version" "$asked")" ] ||
        [ "$stamp" = "$(stamp_for test "$version" "$asked")" ]
}

# repairable: whether pip can bring the environment up to date: it is where it was made, with the Python that it
# was made with.
repairable() {
    local version
    version=$("$environment/bin/python" -c 'import sys, pip; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) &&
        [ "$(head -n 3 -- "$environment/launch/stamp" 2>/dev/null)" = "$(stamp_for '' "$version" | head -n 3)" ]
}

# find_pythons: sets pythons to the interpreters that are new enough, newest first, and versions to theirs; says
# what it found where none is.
find_pythons() {
    local name path version found
    local -A seen=()
    pythons=() versions=() found=''
    while read -r path; do
        case $path in '' | "$environment"/*) continue ;; esac
        name=$(readlink -f -- "$path")
        [ -z "${seen[$name]-}" ] || continue
        seen[$name]=1
        version=$("$path" --version 2>&1 </dev/null) || continue
        [[ $version =~ ^Python\ ([0-9]+)\.([0-9]+) ]] || continue
        found+=${found:+, }"$version at $path"
        ((BASH_REMATCH[1] > 3 || (BASH_REMATCH[1] == 3 && BASH_REMATCH[2] >= 11))) || continue
        pythons+=("$path")
        versions+=("${BASH_REMATCH[1]}.${BASH_REMATCH[2]}")
    done <<<"$(
        if [ -n "${COLLECTLAB_PYTHON-}" ]; then
            type -P -- "$COLLECTLAB_PYTHON"
        else
            for name in python3.{14,13,12,11} python3 python; do type -aP "$name"; done
        fi
    )"
    [ ${#pythons[@]} -gt 0 ] ||
        die "found ${found:-no Python}${COLLECTLAB_PYTHON:+ (COLLECTLAB_PYTHON is $COLLECTLAB_PYTHON)};" \
            "collectlab needs 3.11 or newer: install one (Debian, Ubuntu: apt install python3.11 python3.11-venv)" \
            "or set COLLECTLAB_PYTHON to one"
}

# logged COMMAND...: runs it; its output goes to the log and to the variable output. tee goes on when the disk is
# full, so that the reason is not lost with the log. Whatever pip's configuration says, it is to install here.
logged() {
    output=$(
        set -o pipefail
        unset PIP_TARGET PIP_PREFIX
        export LC_ALL=C.UTF-8 PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0
        { "$@" </dev/null 2>&1 | tee -a -- "$environment/launch/log"; } 2>&1
    )
}

# What pip prints when it does not get through to its package index.
UNREACHABLE='NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|ConnectionResetError'
UNREACHABLE+='|RemoteDisconnected|Max retries exceeded|Failed to establish a new connection|Network is unreachable'
UNREACHABLE+='|Temporary failure in name resolution|Connection (refused|broken|timed out)'

full_disk() { grep -qE 'No space left on device|Disk quota exceeded|Errno (28|122)' <<<"$1"; }

free_in() { { df -Pm -- "$1" || df -Pm -- "${1%/*}"; } 2>/dev/null | awk 'NR == 2 { print $4 " MB" }'; }

# give_up: one line that says why the last logged command failed and what to do.
give_up() {
    local log=$environment/launch/log temporary=${TMPDIR:-/tmp} reason
    full_disk "$output" &&
        die "the disk is full: $environment needs about 700 MB (free there: $(free_in "$environment")," \
            "in $temporary: $(free_in "$temporary")); make room and run this again"
    grep -q CERTIFICATE_VERIFY_FAILED <<<"$output" &&
        die "pip does not trust the certificate of its package index; set PIP_CERT and run this again (log: $log)"
    grep -qE "$UNREACHABLE" <<<"$output" &&
        die "no network: pip could not reach its package index; connect, or set HTTPS_PROXY or PIP_INDEX_URL," \
            "and run this again (log: $log)"
    reason=$(grep -E '^ *(ERROR|Error|[A-Za-z]+Error):? ' <<<"$output" | tail -n 1)
    grep -q '(from versions: none)' <<<"$output" &&
        reason+=" at pip's package index: no network, or an index without it?"
    [ -n "$reason" ] || reason=$(grep . <<<"$output" | tail -n 1)
    reason=${reason#"${reason%%[! ]*}"}
    die "the set-up failed: ${reason:0:300}; mend that and run this again (log: $log)"
}

# make_venv PYTHON: an environment with pip in it, by whichever way PYTHON has; 1 where it has none.
make_venv() {
    logged "$1" -m venv "$environment" && return
    ! full_disk "$output" && grep -qE 'ensurepip|No module named' <<<"$output" || give_up
    if "$1" -c 'import virtualenv' >/dev/null 2>&1; then
        logged "$1" -m virtualenv "$environment" || give_up
    elif "$1" -m pip --version >/dev/null 2>&1 && logged "$1" -m venv --without-pip "$environment"; then
        logged "$1" -m pip --python "$environment/bin/python" install --no-input pip || give_up
    else
        return 1
    fi
}

# make_anew: empties the environment and makes it with the first Python that can.
make_anew() {
    local i without=""
    find_pythons
    rm -f -- "$environment/launch/stamp"
    output=$(
        export LC_ALL=C
        find "$environment" -mindepth 1 -maxdepth 1 ! -name launch -exec rm -rf -- {} + 2>&1
    ) || give_up
    for i in "${!pythons[@]}"; do
        say "making $environment with Python ${versions[i]} (${pythons[i]}); this takes about a minute, once"
        make_venv "${pythons[i]}" && return
        without+=${without:+, }"Python ${versions[i]} at ${pythons[i]}"
    done
    die "$without: cannot make environments (no ensurepip, virtualenv or pip);" \
        "install that part (Debian, Ubuntu: apt install python${versions[0]}-venv) and run this again"
}

in_checkout() { cd -- "$checkout" && "$@"; }

# install EXTRA: collectlab, editable, and what it needs. In a path pip would take brackets for extras.
install() {
    rm -f -- "$environment/launch/stamp"
    logged in_checkout "$environment/bin/python" -m pip install --no-input --disable-pip-version-check \
        --progress-bar off -e ".${1:+[$1]}" || give_up
}

# finish EXTRA: writes the stamp if the environment holds what it should.
finish() {
    local version asked home lacks
    inspect "$environment/bin/python" "$1" && [ "$home" = here ] && [ -z "$lacks" ] || return 1
    output=$(export LC_ALL=C; { stamp_for "$1" "$version" "$asked" > "$environment/launch/stamp.new" &&
        mv -f -- "$environment/launch/stamp.new" "$environment/launch/stamp"; } 2>&1) || give_up
}

# claim: prepares the environment's folder for a start that makes it; prints why that is not possible.
claim() {
    export LC_ALL=C
    { mkdir -p -- "$environment/launch" && touch -- "$environment/launch/lock"; } 2>&1
}

# set_up EXTRA ("" or "test"): sets python to an interpreter that holds collectlab and what EXTRA asks for.
set_up() {
    local adopt=0 problem
    usable_home
    use_active "$1" && return
    unset PYTHONHOME PYTHONPATH

    environment=$checkout/.venv
    if ! ready "$1"; then
        if [ -e "$environment/bin/python" ] && [ ! -e "$environment/launch/lock" ]; then adopt=1; fi
        if ! problem=$(claim); then
            case $problem in
            *'Read-only file system'* | *'Permission denied'*) ;;
            *) output=$problem; full_disk "$output" && give_up; die "$problem; mend that and run this again" ;;
            esac
            adopt=0
            environment=${XDG_CACHE_HOME:-$HOME/.cache}/collectlab/venv-$(sha256sum <<<"$checkout" | cut -c 1-12)
            say "$checkout cannot be written: the environment is $environment"
            problem=$(claim) || die "$problem; set XDG_CACHE_HOME to a folder that can be written, with 700 MB free"
        fi
    fi
    ready "$1" || make "$1" "$adopt"
    export VIRTUAL_ENV=$environment
    use "$environment"
}

# make EXTRA ADOPT: makes or mends the environment, one start at a time. With ADOPT a .venv that somebody else
# made is kept if pip works in it.
make() {
    trap 'say "interrupted; the next start goes on from here"; exit 130' INT
    exec 9> "$environment/launch/lock"
    flock -n 9 || { say "another start is making $environment; waiting for it"; flock 9; }
    if ! ready "$1"; then
        : > "$environment/launch/log"
        if repairable || { [ "$2" = 1 ] && "$environment/bin/python" -c 'import pip, tomllib' 2>/dev/null; }; then
            say "bringing $environment up to date"
            install "$1"
            finish "$1" || { make_anew && install "$1" && finish "$1"; }
        else
            make_anew && install "$1" && finish "$1"
        fi || die "pip ended well, but $environment does not hold collectlab; the log is $environment/launch/log"
    fi
    exec 9>&-
    trap - INT
}
