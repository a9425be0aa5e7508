"""The protocols as pure state machines and procedures: they decide, the shell acts.

Nothing here touches a clock, socket, disk, thread or random source; `now` and chance are
arguments.  The same code runs in a node, in the client, in the simulator and in scenario files.
"""
