"""Designs a voice from a description, so that it can be stored: one model speaks as described, another clones that."""

from functools import partial

from vivavoce_engine import Rejected, SpeechEngine, StoredVoice

from vivavoce_server.access import Caller
from vivavoce_server.errors import ApiError, invalid, rejected_as
from vivavoce_server.jobs import SpeechJob, prepare
from vivavoce_server.metrics import SpeechMeter
from vivavoce_server.schemas import SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.speech import Speech
from vivavoce_server.whole_files import WholeFile

SCRIPT = (
    "Good morning, and thank you for your patience. The train to the coast leaves in twenty minutes, "
    "so there is time for a cup of tea. Would you like to sit by the window?"
)
"""Text that a designed voice speaks to be cloned, unless the client gives another."""
NOT_AVAILABLE = "not_available"


def find_models(model: str | None, service: Service) -> tuple[str, SpeechEngine]:
    """The name of the model that designs, and the engine that clones.

    Raises:
        ApiError: 400, there are no two such models; 404, there is no model of that name.
    """
    named = service.engines if model is None else dict([service.find_model(model)])
    designer = next((name for name, engine in named.items() if engine.info.task == "voice_design"), None)
    cloner = next((engine for engine in service.engines.values() if engine.info.clones), None)
    if designer is None:
        message = "No model here designs voices: this takes a VoiceDesign model beside a Base model"
        raise invalid("type", message, NOT_AVAILABLE)
    if cloner is None:
        message = (
            "A designed voice is stored by cloning it, which takes a Base model beside the VoiceDesign model;"
            " send the prompt as `instructions` of each request instead"
        )
        raise invalid("type", message, NOT_AVAILABLE)
    return designer, cloner


async def store_designed(
    name: str, prompt: str, script: str, models: tuple[str, SpeechEngine], service: Service, caller: Caller
) -> StoredVoice:
    """Speaks the script with the voice that the prompt describes, clones it, and stores that.

    Raises:
        ApiError: 400, the script cannot be spoken, or is too short or too long for a recording; names the field.
        EngineError: the speech failed, or the voice cannot be stored.
    """
    designer, cloner = models
    request = SpeechRequest(
        model=designer, input=script, instructions=prompt, response_format="wav", leading_silence="trim"
    )
    try:
        recording = await _spoken(await prepare(request, service).read(), service, caller)
    except ApiError as error:
        fields = {"input": "script_hint", "instructions": "prompt"}
        error.detail.param = fields.get(error.detail.param or "", error.detail.param)
        raise
    add = partial(cloner.voices.add, name, "", recording, script, prompt)
    try:
        return await service.references.in_thread(add)
    except Rejected as error:
        refusal = rejected_as(error, reference="script_hint")
        if refusal.detail.param == "ref_text":  # the script is what is said in the recording
            refusal.detail.param = "script_hint"
        raise refusal from error


async def _spoken(job: SpeechJob, service: Service, caller: Caller) -> bytes:
    meter = SpeechMeter(service.metrics, job.model)
    with WholeFile() as file, Speech(job, await job.find_voices(), meter, caller.client) as speech:
        await speech.whole(file)
        return b"".join([block async for block in file.blocks()])
