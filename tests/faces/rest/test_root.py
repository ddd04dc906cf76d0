"""The root of the API lists what there is."""

import pytest
from django.test.utils import override_script_prefix
from rest_framework.test import APIClient

pytestmark = pytest.mark.django_db


def test_each_address_is_there(api):
    found = api.get("/api/").json()

    assert list(found) == ["conversations", "messages", "storage", "import", "usage", "chat"]
    assert found["conversations"] == "http://testserver/api/conversations/"
    assert [api.get(where).status_code for where in found.values()] == [200, 400, 200, 405, 200, 405]


def test_the_chat_is_listed_only_where_the_site_has_it(api, settings):
    settings.ROOT_URLCONF = "tests.faces.rest.test_schema"

    assert "chat" not in api.get("/api/").json()


def test_only_those_who_may_use_the_api_see_it():
    response = APIClient().get("/api/")

    assert (response.status_code, response.json()["type"]) == (401, "urn:chatmemory:not_authenticated")


def test_it_is_behind_proxies_what_the_client_asked_for(api):
    with override_script_prefix("/shop/"):  # as servers set it
        found = api.get("/api/", headers={"Host": "localhost"}, SCRIPT_NAME="/shop").json()

    assert found["usage"] == "http://localhost/shop/api/usage/"
    assert found["chat"] == "http://localhost/shop/api/chat"


def test_parameters_are_refused_as_everywhere(api):
    assert api.get("/api/?x=1").status_code == 400
