"""Files in S3, by django-storages against moto's server: stored, read, signed, listed and deleted."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

pytest.importorskip("storages.backends.s3")
server = pytest.importorskip("moto.server")

import boto3  # noqa: E402  # comes with django-storages[s3]
from django.core.files.storage import storages  # noqa: E402

from chatmemory_django import operations  # noqa: E402
from chatmemory_django.contrib.files.findings import check_files  # noqa: E402
from chatmemory_django.contrib.files.models import MediaFile  # noqa: E402
from chatmemory_django.memory import MessageWindowChatMemory  # noqa: E402
from chatmemory_django.models import Conversation  # noqa: E402
from chatmemory_django.stores.django import DjangoChatMemoryStore  # noqa: E402
from tests.pictures import picture, use_storage  # noqa: E402

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ACCESS = {"access_key": "test", "secret_key": "test", "region_name": "us-east-1"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture(autouse=True)
def bucket(settings, address) -> str:
    client = boto3.client(
        "s3", endpoint_url=address, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    )
    client.create_bucket(Bucket="chats")
    options = {"bucket_name": "chats", "endpoint_url": address, "addressing_style": "path", **ACCESS}
    use_storage(settings, {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options})
    return "chats"


def test_files_in_s3_are_read_signed_found_and_deleted(settings):
    memory = MessageWindowChatMemory(max_messages=10, id="a", store=DjangoChatMemoryStore())
    memory.add(picture(), picture())
    assert memory.messages() == [picture(), picture()]
    name = MediaFile.objects.get().name

    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_URLS": 60}
    image = memory.messages()[0].contents[1].image
    assert (image.base64_data, image.mime_type, image.file) == (None, "image/png", None)
    assert f"/chats/{name}?" in image.url
    assert "Expires=" in image.url

    found = []
    assert check_files("default", found.append, age=timedelta(seconds=-60)) == 0
    storages["chats"].delete(name)
    assert check_files("default", found.append) == 1
    operations.erase(Conversation.objects.all())
    assert check_files("default", found.append, age=timedelta(seconds=-60)) == 0
