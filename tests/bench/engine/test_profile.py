"""The assignment of a frame's kernels to components."""

from vivavoce_bench.engine.profile import Component, DeviceActivity, split_frame


def test_a_frame_is_split_where_its_codes_are_drawn() -> None:
    frame = [
        DeviceActivity("Memcpy HtoD (Pinned -> Device)", 1.0),
        DeviceActivity("frame_start_kernel", 2.0),
        DeviceActivity("matvec_kernel", 3.0),
        DeviceActivity("draw_code_kernel", 4.0),
        DeviceActivity("matvec_kernel", 5.0),
        DeviceActivity("draw_code_kernel", 6.0),
        DeviceActivity("matvec_kernel", 7.0),
        DeviceActivity("attend_kernel", 8.0),
        DeviceActivity("draw_code_0_kernel", 9.0),
        DeviceActivity("Memcpy DtoH (Device -> Pinned)", 10.0),
    ]
    assert split_frame(frame, code_groups=3) == {
        "code predictor": Component(10.0, 3),
        "talker": Component(15.0, 2),
        "sampler": Component(19.0, 3),
        "copies": Component(11.0, 2),
    }
