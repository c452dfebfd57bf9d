"""The modules of scripts/gpu_check.sh. They need Python alone, because a machine with a GPU may lack everything else.

verdicts     a stage's checks: their verdicts, time limits and log
libraries    shared libraries: what programs need, and where NVIDIA's are
installation what is checked: a build tree or an unpacked bundle, and the GPUs here
bundle       makes the archive, and unpacks it
units        stage 1
training     stage 2
ranks        stage 3
speed        stage 4
"""
