"""Commit logs (seed 004): streams that store first, and a committer that orders afterwards."""
