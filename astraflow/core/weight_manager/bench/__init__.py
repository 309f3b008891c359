"""Measures weight transfer against what the machine itself can do, in the same run.

versions   two versions of a model that differ in a given share of their elements
peers      the yardsticks: a memory copy, and a plain loopback sender
link       a slow network in front of a sender: a token bucket and a delay
measure    what is measured, a function each
"""
