"""safetensors loads a whole model."""

import os

import kit
import tensors
from safetensors.numpy import load_file


def run(folder, small):
    model = load_file(f"{folder}/model.safetensors")
    return kit.digest(*(model[name].tobytes() for name in sorted(model)))


def direct(place, small):
    from runai_model_streamer import SafetensorsStreamer

    endpoint, bucket = place.rsplit("/", 1)
    os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": kit.KEY, "AWS_SECRET_ACCESS_KEY": kit.SECRET}
    os.environ |= {"AWS_DEFAULT_REGION": kit.REGION, "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0"}
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(f"s3://{bucket}/model.safetensors")
        # The streamer may use a tensor's memory for the next one.
        model = {name: tensor.numpy().tobytes() for name, tensor in streamer.get_tensors()}
    return kit.digest(*(model[name] for name in sorted(model)))


kit.main(tensors.prepare, run, needed=lambda folder, small: os.path.getsize(f"{folder}/model.safetensors"), direct=direct)
