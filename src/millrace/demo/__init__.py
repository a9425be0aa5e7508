"""`make demo`: five nodes, a million records that Spark counts while they arrive, a node killed
half-way, the proof that nothing was lost, and a picture of it.

`run.py` tells the story.  Spark runs in a process of its own: `spark_query.py` is what it does
there, `spark_process.py` is how the demo talks to it and ends it.
"""
