"""The command `millrace`: one file per noun; data on stdout, messages on stderr.
"""
