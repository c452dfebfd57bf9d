"""ReFrame's settings for any machine of one node with mpirun.

A site has settings of its own. Its partitions need the feature `cuda` or `hip` for the tests of that backend.
Source scripts/environment.sh first where MPI runs as root or with more ranks than cores.
"""

site_configuration = {
    "systems": [{
        "name": "local",
        "descr": "one node, with mpirun",
        "hostnames": [".*"],
        "partitions": [{"name": "node", "scheduler": "local", "launcher": "mpirun", "environs": ["default"],
                        "features": []}],
    }],
    "environments": [{"name": "default"}],
}
