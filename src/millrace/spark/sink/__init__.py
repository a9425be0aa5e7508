"""Spark writes logs: `df.write.format("millrace")` and `writeStream`, each row exactly once.

Tasks stage their rows where nobody looks (`staging.py`); the driver publishes what the winning
tasks staged, in all logs at once, under the query's id and the batch's number (`publishing.py`).
Nothing here decides what a publication is: that is the client's (`client/publications`).
"""
