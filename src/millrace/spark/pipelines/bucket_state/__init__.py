"""What pipelines share that follow a bucket and keep something of it: view, search, copy.

`stream.py` brings a bucket's changes batch by batch, `batches.py` takes them apart in tasks,
`shard.py` takes each batch once, `record.py` says what the state was made for, `seen.py` and
`masters.py` how much of the bucket it has, `questions.py` how it is asked.  What is made of the
documents belongs to the pipelines themselves.
"""
