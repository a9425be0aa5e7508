"""The node process: hosts the cores, serves the wire protocol, `/healthz` and `/metrics`."""
