"""Sites: how ranks are started on a machine. A site is data, not code."""

import os
import shutil
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Site:
    """`command` starts `{n}` processes of `{rank}`; `rank_variable` is where each one finds its rank."""

    name: str
    command: tuple[str, ...]
    rank_variable: str
    local_rank_variable: str
    drop: tuple[str, ...]  # prefixes of inherited variables that would confuse the ranks
    variables: dict[str, str]  # set for the ranks, unless the user has set them
    needs: str  # said when the first word of the command is not found


LOCAL = Site(
    name="local",
    command=(
        "mpiexec",
        "-launcher",
        "fork",
        "-rmk",
        "user",
        "-iface",
        "lo",
        "-hosts",
        "127.0.0.1",
        "-n",
        "{n}",
    ),
    rank_variable="PMI_RANK",
    local_rank_variable="MPI_LOCALRANKID",
    drop=(
        "PMI_",
        "PMIX_",
        "PRTE_",
        "OMPI_",
        "SLURM_",
        "HYDRA_",
        "MPIEXEC_",
        "HYDI_",
        "MPI_LOCAL",
        "PALS_",
        "FLUX_",
        "PBS_",
        "LSB_",
    ),
    # one host: UCX need not look for network cards, nor open ports; and Hydra need not write the topology to
    # a file in /tmp, which a kill would leave there
    variables={"UCX_TLS": "self,posix", "HWLOC_XMLFILE": ""},
    needs="MPICH's mpiexec, which `pip install mpich` brings",
)

_SITES = {LOCAL.name: LOCAL}


def find(name):
    """The Site called `name` (None: local). ValueError names the sites there are."""
    if name is None:
        return LOCAL
    if isinstance(name, str) and name in _SITES:
        return _SITES[name]
    known = ", ".join(repr(site) for site in _SITES)
    raise ValueError(f"site={name!r} is unknown; accepted: None or one of {known}")


def command(site, nranks, rank_command):
    """The words that start `nranks` ranks. FileNotFoundError when the site's launcher is not installed."""
    program = site.command[0]
    beside = os.path.join(os.path.dirname(sys.executable), program)
    found = beside if os.access(beside, os.X_OK) else shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"site {site.name!r} needs {site.needs}; {program} was not found")
    return [found, *(word.format(n=nranks) for word in site.command[1:]), *rank_command]


def environment(site, extra):
    """The environment of the ranks: this process's, less what would confuse them, one BLAS thread a rank."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(site.drop)}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**threads, **site.variables, **kept, **extra}
