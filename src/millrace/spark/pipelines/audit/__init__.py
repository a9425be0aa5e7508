"""Audit: every copy of every block of all logs is read on the node that holds it, and compared.

`planning.py` cuts the logs into parts, `copies.py` reads one node's copies of a part in a task, and
`running.py` brings the copies of a part together and has them judged (`core/auditing.py`).
"""

from millrace.spark.pipelines.audit.running import (
    AuditReport,
    AuditSettings,
    LogReport,
    audit,
    copies,
    run_audit,
)

__all__ = ["AuditReport", "AuditSettings", "LogReport", "audit", "copies", "run_audit"]
