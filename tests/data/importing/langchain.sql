BEGIN TRANSACTION;
CREATE TABLE message_store (
	id INTEGER NOT NULL, 
	session_id TEXT, 
	message TEXT, 
	PRIMARY KEY (id)
);
INSERT INTO "message_store" VALUES(1,'anna','{"type": "system", "data": {"content": "Be brief.", "additional_kwargs": {}, "response_metadata": {}, "type": "system", "name": null, "id": null}}');
INSERT INTO "message_store" VALUES(2,'anna','{"type": "human", "data": {"content": "Wie sp\u00e4t ist es? \ud83d\udd5b", "additional_kwargs": {}, "response_metadata": {}, "type": "human", "name": null, "id": "h1"}}');
INSERT INTO "message_store" VALUES(3,'anna','{"type": "ai", "data": {"content": "", "additional_kwargs": {}, "response_metadata": {}, "type": "ai", "name": null, "id": null, "tool_calls": [{"name": "clock", "args": {"zone": "JST"}, "id": "1", "type": "tool_call"}], "invalid_tool_calls": [], "usage_metadata": null}}');
INSERT INTO "message_store" VALUES(4,'anna','{"type": "tool", "data": {"content": "noon", "additional_kwargs": {}, "response_metadata": {}, "type": "tool", "name": "clock", "id": null, "tool_call_id": "1", "artifact": null, "status": "success"}}');
INSERT INTO "message_store" VALUES(5,'anna','{"type": "ai", "data": {"content": [{"type": "text", "text": "Noon."}], "additional_kwargs": {}, "response_metadata": {"n": 1.0, "exact": 9007199254740993}, "type": "ai", "name": null, "id": null, "tool_calls": [], "invalid_tool_calls": [], "usage_metadata": null}}');
INSERT INTO "message_store" VALUES(6,'ben','{"type": "human", "data": {"content": "Hi", "additional_kwargs": {}, "response_metadata": {}, "type": "human", "name": null, "id": null}}');
INSERT INTO "message_store" VALUES(7,'anna','{"type": "human", "data": {"content": "Thanks", "additional_kwargs": {}, "response_metadata": {}, "type": "human", "name": null, "id": null}}');
COMMIT;
