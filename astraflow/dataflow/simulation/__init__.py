"""Dataflow in virtual time: the real service, its loops included, among simulated RaaS and trainers.

clock      an event loop whose time jumps to the next timer: an hour of a run takes seconds, always the same way
choices    what happens by chance, from a seed or by plan
scenario   what is simulated: sizes, latencies, how often what fails
network    a call between programs: it takes time, is lost, or finds nobody
raas       a simulated rollout service; groups are run by the real workflow code
trainer    a simulated trainer that dies and is restored
disk       what outlives a Dataflow
checks     the invariants, from the log alone
sight      what the peers see: nobody starves
mishaps    what befalls a world
settings   the configuration of a simulated run
world      all of it together
explorer   many short worlds: by chance, and systematically
report     what `astraflow simulate` prints
"""
