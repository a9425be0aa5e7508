"""What is known of a log, for people, whatever its write path."""

from millrace.client.describe import LogDescription
from millrace.client.describe_commits import CommitDescription
from millrace.client.describe_sequenced import SequencedDescription

AnyDescription = LogDescription | SequencedDescription | CommitDescription
