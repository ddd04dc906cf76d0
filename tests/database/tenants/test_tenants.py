"""Sites with tenants, as the page Tenants shows them: the tests in ``cases`` hold on each, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection

from tests.acceptance.docs.pages import block_of

ROOT = Path(__file__).parents[3]

BEFORE = """
import os
from example_project.settings import *

MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.locale.LocaleMiddleware",
              "django.contrib.auth.middleware.AuthenticationMiddleware"]
ROOT_URLCONF = "tests.database.tenants.urls"
ALLOWED_HOSTS = [".localhost"]
"""

AFTER = """
CHATMEMORY["CHAT"] |= {"THROTTLE_RATE": None, "READ_THROTTLE_RATE": None, "MAX_ANSWERS": 50, "MAX_STREAMS": 50}
CHATMEMORY |= {"REST": {"THROTTLE_RATES": {}}, "RETENTION": {}}
"""

SCHEMAS = """
DATABASES["default"]["ENGINE"] = "django_tenants.postgresql_backend"
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
TENANT_MODEL, TENANT_DOMAIN_MODEL = "customers.Customer", "customers.Domain"
MIDDLEWARE.insert(0, "django_tenants.middleware.main.TenantMainMiddleware")
"""

SHARED = """
SHARED_APPS = [*SHARED_APPS, *(app for app in TENANT_APPS if app not in SHARED_APPS)]
TENANT_APPS = ["django.contrib.contenttypes", "chatmemory_django", "chatmemory_django.chat"]
"""
"""Tables of the chat in each schema and in public, users in public alone."""

ROWS = """
INSTALLED_APPS = [*INSTALLED_APPS, "secured"]
INSTALLED_APPS.remove("example_project")
MIDDLEWARE.insert(0, "mysite.tenants.tenant_middleware")
CHATMEMORY = {
    "CHAT": {"ASSISTANT": "mysite.assistants.assistant", "THREAD_CONTEXT": "mysite.tenants.thread_context"},
    "ACCESS_POLICY": "mysite.access.TenantPolicy",
}
DATABASES["default"]["USER"] = "chatmemory_tenants"
"""

EXCEPT = {"shared": ["-k", "not function and not wsgi"], "rows": ["-k", "not function"]}
"""What makes no difference there."""

CUSTOMERS = """
from django.db import models
from django_tenants.models import DomainMixin, TenantMixin


class Customer(TenantMixin):
    pass


class Domain(DomainMixin):
    pass
"""


def files(kind: str) -> dict[str, str]:
    """Return the files of a site, by name: the code of the page, and what it leaves out."""

    def shown(part: str) -> str:
        return block_of("tenants.md", part)

    assistants = {"mysite/__init__": "", "mysite/assistants": "from tests.database.tenants.assistants import assistant"}
    if kind == "rows":
        return {
            **assistants,
            "mysite/settings": BEFORE + ROWS + AFTER,
            "mysite/tenants": shown("def tenant_middleware(get_response):\n    def middleware(request):\n        with"),
            "mysite/access": shown("thread_context.capture(request)}:{super()"),
            "secured/__init__": "",
            "secured/migrations/__init__": "",
            "secured/migrations/0001_initial": shown("FORCE ROW LEVEL SECURITY"),
        }
    return {
        **assistants,
        "mysite/settings": BEFORE + shown("TENANT_APPS = [") + (SHARED if kind == "shared" else "") + SCHEMAS + AFTER,
        "mysite/tenants": shown("schema_context(schema_name)"),
        "customers/__init__": "",
        "customers/models": CUSTOMERS,
    }


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Schemas and row level security are PostgreSQL's")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["schemas", "shared", "rows"])
def test_no_tenant_reads_or_writes_what_is_of_another(kind, tmp_path):
    if kind != "rows":
        pytest.importorskip("django_tenants")
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_roles WHERE rolname = 'chatmemory_tenants'")
        if not cursor.rowcount:
            cursor.execute("CREATE ROLE chatmemory_tenants LOGIN CREATEDB")
    for name, content in files(kind).items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    url = urlsplit(os.environ["DATABASE_URL"])

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist",
         "-W", "ignore::DeprecationWarning", *EXCEPT.get(kind, []), "tests/database/tenants/cases.py"],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": url._replace(path=f"{url.path}_{kind}", query="").geturl(),
            "DJANGO_SETTINGS_MODULE": "mysite.settings",
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "KIND": kind,
        },
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
