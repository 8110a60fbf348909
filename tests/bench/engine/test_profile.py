"""A frame's kernels by component."""

from vivavoce_bench.engine.profile import Component, Launch, split_frame


def test_a_frame_is_split_where_its_codes_are_drawn() -> None:
    frame = [
        Launch("Memcpy HtoD (Pinned -> Device)", 1.0),
        Launch("frame_start_kernel", 2.0),
        Launch("matvec_kernel", 3.0),
        Launch("draw_code_kernel", 4.0),
        Launch("matvec_kernel", 5.0),
        Launch("draw_code_kernel", 6.0),
        Launch("matvec_kernel", 7.0),
        Launch("attend_kernel", 8.0),
        Launch("draw_code_0_kernel", 9.0),
        Launch("Memcpy DtoH (Device -> Pinned)", 10.0),
    ]
    assert split_frame(frame, code_groups=3) == {
        "code predictor": Component(10.0, 3),
        "talker": Component(15.0, 2),
        "sampler": Component(19.0, 3),
        "copies": Component(11.0, 2),
    }
