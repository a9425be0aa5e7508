"""What a user pays: Millrace beside a peer and beside the physical limit, in one run.

Run as `python -m bench` from the repository.  Nothing in `src/` imports this package, and what
it installs for the comparison stays in `bench/.peers/`.
"""
