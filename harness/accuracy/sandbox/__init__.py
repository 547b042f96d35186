"""Where code runs that a model wrote: no network, no files but Python's own, limited time, memory and output.

Outside in: namespaces with a root of their own (`bwrap`, or unshare(2) where that isn't installed), then limits of the
process and a filter of its system calls (`confine.py`). A sandbox counts as there only when a program that was really
run in it has found everything closed.
"""
