"""Clusters of real processes for the tests here."""

from tests.support.cluster_fixtures import calm_cluster, make_cluster, pytest_runtest_makereport

__all__ = ["calm_cluster", "make_cluster", "pytest_runtest_makereport"]
