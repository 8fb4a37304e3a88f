BEGIN TRANSACTION;
CREATE TABLE attestations (
	sequence INTEGER NOT NULL, 
	id VARCHAR NOT NULL, 
	recommendation VARCHAR NOT NULL, 
	effect VARCHAR NOT NULL, 
	created VARCHAR NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (sequence), 
	CONSTRAINT uq_attestations_id UNIQUE (id)
);
INSERT INTO "attestations" VALUES(1,'ddc036341590bb88669caf81a7a59b2b','r1','partly','2026-01-01','{"schema":1,"id":"ddc036341590bb88669caf81a7a59b2b","created":"2026-01-01","recommendation":"r1","cluster":"pair","model":"toy","form":"table","effect":"partly","reason":"5 of 10 calls that the policy speaks of went as it says","calls_as_wanted":5,"calls_differing":5,"calls_unruled":0,"rows":[{"collective":"all_reduce","size_bytes":1024,"group_size":8,"wanted":"tree/ll","used":"","calls":5,"state":"differs","reason":"for this call NCCL offers no such choice: its links, its data type or a variable rule it out"},{"collective":"all_reduce","size_bytes":1024,"group_size":8,"wanted":"tree/ll","used":"tree/ll","calls":5,"state":"as-wanted","reason":""}],"witnesses":[{"kind":"plugin-report","nccl_version":"2.28.9","table":"r1","checksum":"","not_in_use":"","ranks":0,"nodes":0,"count":1}],"hosts":0,"notes":["a note"],"evidence":""}');
INSERT INTO "attestations" VALUES(2,'ebcecd9f0f26b6aeb4249855c1977d15','r2','took-effect','2026-01-01','{"schema":1,"id":"ebcecd9f0f26b6aeb4249855c1977d15","created":"2026-01-01","recommendation":"r2","cluster":"pair","model":"toy","form":"table","effect":"took-effect","reason":"10 of 10 calls that the policy speaks of went as it says","calls_as_wanted":10,"calls_differing":0,"calls_unruled":0,"rows":[{"collective":"all_reduce","size_bytes":1024,"group_size":8,"wanted":"tree/ll","used":"tree/ll","calls":10,"state":"as-wanted","reason":""}],"witnesses":[{"kind":"plugin-report","nccl_version":"2.28.9","table":"r2","checksum":"","not_in_use":"","ranks":0,"nodes":0,"count":1}],"hosts":0,"notes":["a note"],"evidence":""}');
CREATE TABLE checks (
	sequence INTEGER NOT NULL, 
	id VARCHAR NOT NULL, 
	recommendation VARCHAR NOT NULL, 
	freshness VARCHAR NOT NULL, 
	created VARCHAR NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (sequence), 
	CONSTRAINT uq_checks_id UNIQUE (id)
);
INSERT INTO "checks" VALUES(1,'c1','r1','stale','2026-01-02T03:04:05.678','{"schema":1,"id":"c1","recommendation":"r1","cluster":"pair","model":"toy","freshness":"stale","reasons":["the gain is lost"],"changes":[{"what":"gain","before":1.1,"now":0.9,"noise":0.02,"changed":true}],"launches":8,"launcher":"simulate","created":"2026-01-02T03:04:05.678","driver":""}');
INSERT INTO "checks" VALUES(2,'c2','r2','fresh','2026-01-02T03:04:05.678','{"schema":1,"id":"c2","recommendation":"r2","cluster":"pair","model":"toy","freshness":"fresh","reasons":[],"changes":[{"what":"gain","before":1.1,"now":0.9,"noise":0.02,"changed":true}],"launches":8,"launcher":"simulate","created":"2026-01-02T03:04:05.678","driver":""}');
CREATE TABLE clusters (
	name VARCHAR NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "clusters" VALUES('pair','{"name":"pair","nodes":2,"gpus_per_node":4,"gpu":"A100-SXM4-64GB","compute_capability":80,"link_class":"nvlink","link_gbps":100.0,"fabric":"infiniband","nics_per_node":4,"nic_gbps":12.5,"gpudirect":true,"cpu":"intel","nccl_version":"2.28.9","topology_hash":"","description":"","sources":["made up for tests"]}');
CREATE TABLE leases (
	study VARCHAR NOT NULL, 
	what VARCHAR NOT NULL, 
	worker VARCHAR NOT NULL, 
	renewed_s FLOAT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (study, what), 
	CONSTRAINT fk_leases_study FOREIGN KEY(study) REFERENCES studies (id)
);
CREATE TABLE measurements (
	study VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	collective VARCHAR NOT NULL, 
	dtype VARCHAR NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	group_size INTEGER NOT NULL, 
	spans_nodes BOOLEAN NOT NULL, 
	wrong BIGINT, 
	interpolated BOOLEAN NOT NULL, 
	samples_us TEXT NOT NULL, 
	PRIMARY KEY (study, number, position), 
	CONSTRAINT fk_measurements_trial FOREIGN KEY(study, number) REFERENCES trials (study, number)
);
INSERT INTO "measurements" VALUES('abc123',0,0,'all_reduce','float32',1099511627776,8,1,1099511627776,0,'[0.30000000000000004,0.3333333333333333,5e-324]');
INSERT INTO "measurements" VALUES('abc123',0,1,'all_reduce','float32',549755813888,8,1,NULL,0,'[0.30000000000000004,0.3333333333333333,5e-324]');
INSERT INTO "measurements" VALUES('abc123',1,0,'all_reduce','float32',1099511627776,8,1,1099511627776,0,'[0.30000000000000004,1.3333333333333333,5e-324]');
INSERT INTO "measurements" VALUES('abc123',1,1,'all_reduce','float32',549755813888,8,1,NULL,0,'[0.30000000000000004,1.3333333333333333,5e-324]');
INSERT INTO "measurements" VALUES('abc123',2,0,'all_reduce','float32',1099511627776,8,1,1099511627776,0,'[0.30000000000000004,2.3333333333333335,5e-324]');
INSERT INTO "measurements" VALUES('abc123',2,1,'all_reduce','float32',549755813888,8,1,NULL,0,'[0.30000000000000004,2.3333333333333335,5e-324]');
CREATE TABLE ncclt_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT ncclt_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "ncclt_alembic_version" VALUES('0006');
CREATE TABLE preflights (
	sequence INTEGER NOT NULL, 
	id VARCHAR NOT NULL, 
	cluster VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	created VARCHAR NOT NULL, 
	simulated BOOLEAN NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (sequence), 
	CONSTRAINT uq_preflights_id UNIQUE (id)
);
INSERT INTO "preflights" VALUES(1,'p1','pair','healthy','2026-01-01',1,'{"schema":1,"id":"p1","created":"2026-01-01","state":"healthy","verdict":"SIMULATED: healthy: a..d (4 nodes) reach 99 % of 45.9 GB/s (by its links)","simulated":true,"cluster":"pair","fingerprint":"c5dc25ba103d","launcher":"simulate","benchmark":"simulated","hosts":["a","b","c","d"],"gpus_per_node":2,"source":"by its links","expected":[{"size_bytes":1073741824,"busbw_gbps":45.88374470234867}],"tolerance":0.15,"findings":[],"readings":[{"hosts":["a","b","c","d"],"gpus":[],"ranks":8,"repeat":0,"outcome":"ok","times_us":[[64,28.940083161496595],[4096,34.95900518680535],[262144,78.6078746353084],[16777216,758.2325586352804],[1073741824,41312.96457466284]],"busbw_gbps":45.48325716505024,"expected_gbps":45.88374470234867,"detail":"","wall_s":2.2102310007753534}],"notes":[],"wall_s":0.0}');
CREATE TABLE recommendations (
	sequence INTEGER NOT NULL, 
	id VARCHAR NOT NULL, 
	revision INTEGER NOT NULL, 
	study VARCHAR NOT NULL, 
	cluster VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	fingerprint VARCHAR NOT NULL, 
	created VARCHAR NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (sequence), 
	CONSTRAINT uq_recommendations_id UNIQUE (id), 
	CONSTRAINT uq_recommendations_revision UNIQUE (cluster, model, fingerprint, revision)
);
INSERT INTO "recommendations" VALUES(1,'r1',1,'abc123','pair','toy','7a73911804d0','2026-01-01T00:00:04.000+00:00','{"schema":1,"id":"r1","revision":1,"study":"abc123","cluster":"pair","model":"toy","workload_digest":"000000000000","collectives":["all_reduce"],"fingerprint":{"gpu":"A100-SXM4-64GB","link_class":"nvlink","fabric":"infiniband","nodes":2,"gpus_per_node":4,"nccl_version":"2.28.9","topology_hash":""},"table":{"policy":{"rules":[{"collective":"all_reduce","min_bytes":0,"max_bytes":4096,"group_size":0,"algorithm":"tree","protocol":"ll","channels":null}],"parameters":{}},"verdict":{"decision":"tuned","reason":"0.1 + 0.2 faster","speedup":1.1,"interval":[1.05,0.30000000000000004],"blocks":6,"default_us":110.0,"policy_us":100.0,"min_effect":0.02}},"variables":null,"simulated":true,"launcher":"simulate","created":"2026-01-01T00:00:04.000+00:00","source_digest":"","stale":"","dtypes":[]}');
INSERT INTO "recommendations" VALUES(2,'r2',2,'abc123','pair','toy','7a73911804d0','2026-01-01T00:00:05.000+00:00','{"schema":1,"id":"r2","revision":2,"study":"abc123","cluster":"pair","model":"toy","workload_digest":"000000000000","collectives":["all_reduce"],"fingerprint":{"gpu":"A100-SXM4-64GB","link_class":"nvlink","fabric":"infiniband","nodes":2,"gpus_per_node":4,"nccl_version":"2.28.9","topology_hash":""},"table":{"policy":{"rules":[{"collective":"all_reduce","min_bytes":0,"max_bytes":4096,"group_size":0,"algorithm":"tree","protocol":"ll","channels":null}],"parameters":{}},"verdict":{"decision":"tuned","reason":"0.1 + 0.2 faster","speedup":1.1,"interval":[1.05,0.30000000000000004],"blocks":6,"default_us":110.0,"policy_us":100.0,"min_effect":0.02}},"variables":null,"simulated":true,"launcher":"simulate","created":"2026-01-01T00:00:05.000+00:00","source_digest":"","stale":"","dtypes":[]}');
INSERT INTO "recommendations" VALUES(3,'r3',1,'abc123','pair','toy','4b484a6c4931','2026-01-01T00:00:06.000+00:00','{"schema":1,"id":"r3","revision":1,"study":"abc123","cluster":"pair","model":"toy","workload_digest":"000000000000","collectives":["all_reduce"],"fingerprint":{"gpu":"A100-SXM4-64GB","link_class":"nvlink","fabric":"infiniband","nodes":4,"gpus_per_node":4,"nccl_version":"2.28.9","topology_hash":""},"table":{"policy":{"rules":[{"collective":"all_reduce","min_bytes":0,"max_bytes":4096,"group_size":0,"algorithm":"tree","protocol":"ll","channels":null}],"parameters":{}},"verdict":{"decision":"tuned","reason":"0.1 + 0.2 faster","speedup":1.1,"interval":[1.05,0.30000000000000004],"blocks":6,"default_us":110.0,"policy_us":100.0,"min_effect":0.02}},"variables":null,"simulated":true,"launcher":"simulate","created":"2026-01-01T00:00:06.000+00:00","source_digest":"","stale":"","dtypes":[]}');
CREATE TABLE studies (
	sequence INTEGER NOT NULL, 
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	cluster VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	created VARCHAR NOT NULL, 
	updated VARCHAR NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (sequence), 
	CONSTRAINT uq_studies_id UNIQUE (id), 
	CONSTRAINT uq_studies_name UNIQUE (name)
);
INSERT INTO "studies" VALUES(1,'abc123','first','pair','toy','done','2026-01-01T00:00:00.000+00:00','2026-01-01T00:00:07.000+00:00','{"cluster":{"name":"pair","nodes":2,"gpus_per_node":4,"gpu":"A100-SXM4-64GB","compute_capability":80,"link_class":"nvlink","link_gbps":100.0,"fabric":"infiniband","nics_per_node":4,"nic_gbps":12.5,"gpudirect":true,"cpu":"intel","nccl_version":"2.28.9","topology_hash":"","description":"","sources":["made up for tests"]},"workload":{"schema":1,"name":"toy","provenance":{"source":"test","created":"","detail":{"model":"none"},"world_size":0,"ranks_read":[],"steps":0,"notes":[]},"messages":[{"collective":"all_reduce","dtype":"float32","size_bytes":1099511627776,"group_size":8,"spans_nodes":true,"calls_per_step":1.5},{"collective":"all_reduce","dtype":"float32","size_bytes":549755813888,"group_size":8,"spans_nodes":true,"calls_per_step":2.5}]},"launcher":"simulate","simulated":true,"process_wide":["BUFFSIZE"],"seed":1180591620717411303424,"reason":"the budget is used"}');
CREATE TABLE trials (
	study VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	phase VARCHAR NOT NULL, 
	setting VARCHAR NOT NULL, 
	outcome VARCHAR NOT NULL, 
	score_us FLOAT, 
	started VARCHAR NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (study, number), 
	CONSTRAINT fk_trials_study FOREIGN KEY(study) REFERENCES studies (id)
);
INSERT INTO "trials" VALUES('abc123',0,'search','5ca212130f88','ok',123.456,'','{"setting":{"algorithm":"ring","protocol":"simple","channels":8,"parameters":{"BUFFSIZE":8388608}},"repeat":0,"arm":null,"block":0,"detail":"","wall_s":0.14285714285714285,"place":"","warm":false,"by_plugin":false}');
INSERT INTO "trials" VALUES('abc123',1,'search','5ca212130f88','ok',123.456,'','{"setting":{"algorithm":"ring","protocol":"simple","channels":8,"parameters":{"BUFFSIZE":8388608}},"repeat":0,"arm":null,"block":0,"detail":"","wall_s":0.14285714285714285,"place":"","warm":false,"by_plugin":false}');
INSERT INTO "trials" VALUES('abc123',2,'search','5ca212130f88','ok',123.456,'','{"setting":{"algorithm":"ring","protocol":"simple","channels":8,"parameters":{"BUFFSIZE":8388608}},"repeat":0,"arm":null,"block":0,"detail":"","wall_s":0.14285714285714285,"place":"","warm":false,"by_plugin":false}');
CREATE TABLE verifications (
	sequence INTEGER NOT NULL, 
	id VARCHAR NOT NULL, 
	cluster VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	recommendation VARCHAR NOT NULL, 
	decision VARCHAR NOT NULL, 
	created VARCHAR NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (sequence), 
	CONSTRAINT uq_verifications_id UNIQUE (id)
);
INSERT INTO "verifications" VALUES(1,'v1','pair','toy','r2','tuned','2026-01-01','{"schema":1,"id":"v1","cluster":"pair","model":"toy","recommendation":"r2","argv":["torchrun","train.py"],"base_env":{},"tuned_env":{"NCCL_ALGO":"Ring"},"removed_env":["NCCL_DEBUG"],"warmup":10,"steps":2,"ranks":2,"hosts":1,"verdict":{"decision":"tuned","reason":"0.1 + 0.2 faster","speedup":1.1,"interval":[0.0,null],"blocks":6,"default_us":110.0,"policy_us":100.0,"min_effect":0.02},"percentiles_us":{"base":{"p50":16666.816666666666,"p75":25000.075,"p90":30000.03,"p95":31666.681666666664},"tuned":{}},"launches":[{"side":"base","order":0,"step_us":[0.30000000000000004,33333.333333333336],"failure":""},{"side":"tuned","order":1,"step_us":[],"failure":"exit code 1\nno \u00b5 \u0000 \udc80"}],"notes":["one"],"created":"2026-01-01"}');
CREATE TABLE workloads (
	name VARCHAR NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "workloads" VALUES('toy','{"schema":1,"name":"toy","provenance":{"source":"test","created":"","detail":{"model":"none"},"world_size":0,"ranks_read":[],"steps":0,"notes":[]},"messages":[{"collective":"all_reduce","dtype":"float32","size_bytes":1099511627776,"group_size":8,"spans_nodes":true,"calls_per_step":1.5},{"collective":"all_reduce","dtype":"float32","size_bytes":549755813888,"group_size":8,"spans_nodes":true,"calls_per_step":2.5}]}');
CREATE INDEX ix_studies_cluster_model ON studies (cluster, model);
CREATE INDEX ix_recommendations_study ON recommendations (study);
CREATE INDEX ix_verifications_cluster_model ON verifications (cluster, model);
CREATE INDEX ix_preflights_cluster ON preflights (cluster);
CREATE INDEX ix_checks_recommendation ON checks (recommendation);
CREATE INDEX ix_attestations_recommendation ON attestations (recommendation);
COMMIT;
