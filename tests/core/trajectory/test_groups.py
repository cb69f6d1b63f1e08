"""A group that a selection leaves out: which members change, and how."""

from ajet.core.trajectory.trajectory import EpisodeStatus, SelectionName
from tests.core.record.record_fixtures import episode, group_of


def test_a_group_set_aside_has_no_valid_member_and_those_that_failed_stay_as_they_are():
    failed = episode(member=1, reward=None, status=EpisodeStatus.AGENT_ERROR, error="no move")
    group = group_of(episode(member=0), failed).leave_out(
        SelectionName.DYNAMIC_SAMPLING, "rewards are equal"
    )
    first, second = group.trajectories
    assert (first.left_out, first.status) == ("dynamic_sampling", EpisodeStatus.ABORTED)
    assert first.outcome is EpisodeStatus.OK
    assert second == failed and group.valid == ()
