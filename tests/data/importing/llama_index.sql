BEGIN TRANSACTION;
CREATE TABLE llama_index_memory (
	id INTEGER NOT NULL, 
	"key" VARCHAR NOT NULL, 
	timestamp BIGINT NOT NULL, 
	role VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	data JSON NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "llama_index_memory" VALUES(1,'anna',1795372776200419718,'system','archived','{"role": "system", "additional_kwargs": {}, "blocks": [{"block_type": "text", "text": "Be brief."}]}');
INSERT INTO "llama_index_memory" VALUES(2,'anna',1795372776200558856,'user','archived','{"role": "user", "additional_kwargs": {}, "blocks": [{"block_type": "text", "text": "Wie sp\u00e4t ist es? \ud83d\udd5b"}]}');
INSERT INTO "llama_index_memory" VALUES(3,'ben',1795372776215832356,'user','active','{"role": "user", "additional_kwargs": {}, "blocks": [{"block_type": "text", "text": "Wie sp\u00e4t ist es? \ud83d\udd5b"}]}');
INSERT INTO "llama_index_memory" VALUES(4,'anna',1795372776231757360,'assistant','active','{"role": "assistant", "additional_kwargs": {}, "blocks": [{"block_type": "text", "text": "Let me see."}, {"block_type": "tool_call", "tool_call_id": "1", "tool_name": "clock", "tool_kwargs": {"zone": "JST"}}]}');
INSERT INTO "llama_index_memory" VALUES(5,'anna',1795372776231841316,'tool','active','{"role": "tool", "additional_kwargs": {"tool_call_id": "1", "name": "clock"}, "blocks": [{"block_type": "text", "text": "noon"}]}');
INSERT INTO "llama_index_memory" VALUES(6,'anna',1795372776231859834,'assistant','active','{"role": "assistant", "additional_kwargs": {"n": 1.0}, "blocks": [{"block_type": "text", "text": "Noon."}]}');
CREATE INDEX ix_llama_index_memory_status ON llama_index_memory (status);
CREATE INDEX ix_llama_index_memory_key ON llama_index_memory ("key");
CREATE INDEX ix_llama_index_memory_timestamp ON llama_index_memory (timestamp);
COMMIT;
