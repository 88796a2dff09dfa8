-- What the statements of a store object call; {ns} is the quoted name of the namespace. Everything that is
-- asked often is a function: its plans are kept where a pooler allows no prepared statements.

CREATE FUNCTION {ns}.now_ms() RETURNS bigint LANGUAGE sql AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- For this transaction: what a commit waits for, and how long a lock is waited for.
CREATE FUNCTION {ns}.begin(power boolean, lock_ms text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT power THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM set_config('lock_timeout', lock_ms, true);
END $$;

-- Adds to what one connection has counted, and tells what it has counted.
CREATE FUNCTION {ns}.count(
    me bigint, my_lane integer, INOUT sessions bigint, INOUT streams bigint, INOUT events bigint, INOUT bytes bigint
) LANGUAGE plpgsql AS $$
BEGIN
    IF sessions = 0 AND streams = 0 AND events = 0 AND bytes = 0 THEN
        SELECT t.sessions, t.streams, t.events, t.bytes INTO sessions, streams, events, bytes
        FROM {ns}.tally AS t WHERE owner = me AND lane = my_lane;
        sessions := coalesce(sessions, 0); streams := coalesce(streams, 0);
        events := coalesce(events, 0); bytes := coalesce(bytes, 0);
        RETURN;
    END IF;
    INSERT INTO {ns}.tally AS t VALUES (me, my_lane, sessions, streams, events, bytes)
    ON CONFLICT (owner, lane) DO UPDATE SET
        sessions = t.sessions + excluded.sessions, streams = t.streams + excluded.streams,
        events = t.events + excluded.events, bytes = t.bytes + excluded.bytes
    RETURNING t.sessions, t.streams, t.events, t.bytes INTO sessions, streams, events, bytes;
END $$;

-- Counts a change of what a session holds. `sessions` is the change of how many have logs.
CREATE FUNCTION {ns}.grow(
    session_id bigint, d_streams bigint, d_bytes bigint, OUT sessions bigint, OUT bytes bigint
) LANGUAGE plpgsql AS $$
DECLARE
    s record;
BEGIN
    UPDATE {ns}.session AS se SET streams = se.streams + d_streams, bytes = se.bytes + d_bytes
    WHERE id = session_id RETURNING se.streams, se.bytes, created INTO s;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the session was dropped meanwhile' USING ERRCODE = '40001';
    END IF;
    sessions := (s.streams > 0)::int - (s.streams - d_streams > 0)::int;
    bytes := s.bytes;
    IF s.streams = 0 AND s.created IS NULL THEN
        DELETE FROM {ns}.session WHERE id = session_id;
        bytes := 0;
    END IF;
END $$;

-- Removes a session with its logs.
CREATE FUNCTION {ns}.remove_session(
    session_id bigint, OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint
) LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM {ns}.stream WHERE session = session_id RETURNING id, stream.events, stream.bytes
    ), thrown AS (
        INSERT INTO {ns}.trash (stream, events) SELECT id, gone.events FROM gone
    )
    SELECT -count(*), -coalesce(sum(gone.events), 0), -coalesce(sum(gone.bytes), 0) INTO streams, events, bytes FROM gone;
    DELETE FROM {ns}.session WHERE id = session_id;
    sessions := -(streams < 0)::int;
END $$;

-- Moves `low` on while a stream is over its bounds; then events that outlived the prefix go, oldest first.
-- The newest event always stays. The stream is locked.
CREATE FUNCTION {ns}.shrink(
    stream_id bigint, max_events bigint, max_bytes bigint, oldest bigint, event_cost bigint,
    OUT events bigint, OUT bytes bigint, OUT trimmed bigint
) LANGUAGE plpgsql AS $$
DECLARE
    s record;
    e record;
    before record;
BEGIN
    SELECT * INTO STRICT s FROM {ns}.stream WHERE id = stream_id;
    before := s;
    trimmed := 0;
    FOR e IN
        SELECT seq, at, tag, pinned, octet_length(frame) + event_cost AS cost
        FROM {ns}.event WHERE stream = stream_id AND seq >= before.low ORDER BY seq
    LOOP
        s.low_at := e.at;
        EXIT WHEN e.seq >= s.head
            OR NOT (s.events > max_events OR s.bytes > max_bytes OR (s.low < s.head AND s.low_at < oldest));
        trimmed := trimmed + 1;
        s.low := e.seq + 1;
        s.low_tag := e.tag;
        IF NOT e.pinned THEN
            s.events := s.events - 1;
            s.bytes := s.bytes - e.cost;
        END IF;
    END LOOP;
    IF s.low > before.low THEN
        DELETE FROM {ns}.event WHERE stream = stream_id AND seq >= before.low AND seq < s.low AND NOT pinned;
    END IF;
    WHILE s.low = s.head AND (s.events > max_events OR s.bytes > max_bytes) LOOP
        DELETE FROM {ns}.event WHERE stream = stream_id AND seq = (
            SELECT min(seq) FROM {ns}.event WHERE stream = stream_id AND seq > 0 AND seq < s.low
        ) RETURNING octet_length(frame) + event_cost AS cost INTO e;
        EXIT WHEN NOT FOUND;
        s.events := s.events - 1;
        s.bytes := s.bytes - e.cost;
    END LOOP;
    UPDATE {ns}.stream SET low = s.low, low_tag = s.low_tag, low_at = s.low_at, events = s.events, bytes = s.bytes
    WHERE id = stream_id;
    events := s.events - before.events;
    bytes := s.bytes - before.bytes;
END $$;

-- The session's streams that finished first go first, then the oldest events of its largest.
CREATE FUNCTION {ns}.trim_session(
    session_id bigint, written bigint[], max_bytes bigint, event_cost bigint,
    OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint, OUT trimmed bigint
) LANGUAGE plpgsql AS $$
DECLARE
    held bigint;
    s record;
    t record;
    d_streams bigint := 0;
    d_bytes bigint := 0;
BEGIN
    sessions := 0; streams := 0; events := 0; bytes := 0; trimmed := 0;
    SELECT se.bytes INTO held FROM {ns}.session AS se WHERE id = session_id;
    IF NOT FOUND THEN RETURN; END IF;
    -- An eighth more than needed, so that the next events do not look through all streams again.
    FOR s IN
        SELECT id FROM {ns}.stream WHERE session = session_id AND finished IS NOT NULL AND id <> ALL (written)
        ORDER BY finished, id
    LOOP
        EXIT WHEN held + d_bytes <= max_bytes - max_bytes / 8;
        DELETE FROM {ns}.stream AS st WHERE id = s.id RETURNING st.events, st.bytes INTO t;
        CONTINUE WHEN NOT FOUND;
        INSERT INTO {ns}.trash (stream, events) VALUES (s.id, t.events);
        d_streams := d_streams - 1; d_bytes := d_bytes - t.bytes; events := events - t.events;
    END LOOP;
    WHILE held + d_bytes > max_bytes LOOP
        SELECT id, st.bytes, st.events INTO s FROM {ns}.stream AS st
        WHERE session = session_id AND st.events > 1 ORDER BY st.bytes DESC LIMIT 1 FOR NO KEY UPDATE;
        EXIT WHEN NOT FOUND;
        SELECT * INTO t FROM {ns}.shrink(s.id, s.events, s.bytes - greatest(s.bytes / 4, 1), 0, event_cost);
        EXIT WHEN t.events = 0;
        d_bytes := d_bytes + t.bytes; events := events + t.events; trimmed := trimmed + t.trimmed;
    END LOOP;
    IF d_streams <> 0 OR d_bytes <> 0 THEN
        SELECT * INTO t FROM {ns}.grow(session_id, d_streams, d_bytes);
        sessions := t.sessions; streams := d_streams; bytes := d_bytes;
    END IF;
END $$;

-- Forgets streams whose rows, and those of whose sessions, are locked.
CREATE FUNCTION {ns}.forget(
    ids bigint[], OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint
) LANGUAGE plpgsql AS $$
DECLARE
    g record;
    t record;
BEGIN
    sessions := 0; streams := 0; events := 0; bytes := 0;
    FOR g IN
        WITH gone AS (
            DELETE FROM {ns}.stream AS st WHERE id = ANY (ids) RETURNING id, session, st.events, st.bytes
        ), thrown AS (
            INSERT INTO {ns}.trash (stream, events) SELECT id, gone.events FROM gone
        )
        SELECT session, count(*) AS count, sum(gone.events) AS events, sum(gone.bytes) AS bytes
        FROM gone GROUP BY session ORDER BY session
    LOOP
        SELECT * INTO t FROM {ns}.grow(g.session, -g.count, -g.bytes::bigint);
        sessions := sessions + t.sessions; streams := streams - g.count;
        events := events - g.events; bytes := bytes - g.bytes;
    END LOOP;
END $$;

-- Retention, a bounded part of it: `more` when there is more. What others have locked is left for later.
-- lost: the owners that `me` saw stand still, at these beats.
CREATE FUNCTION {ns}.sweep(
    me bigint, my_lane integer, clock bigint, retention_ms bigint, max_age_ms bigint, at_most integer,
    lost bigint[], lost_beats bigint[],
    OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint, OUT more boolean
) LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := coalesce(clock, {ns}.now_ms());
    ids bigint[];
    s record;
    t record;
    thrown bigint;
BEGIN
    PERFORM {ns}.begin(false, '1000');
    sessions := 0; streams := 0; events := 0; bytes := 0; more := false;
    UPDATE {ns}.owner AS o SET gone = now_ms FROM unnest(lost, lost_beats) AS l (id, beat)
    WHERE o.id = l.id AND o.beat = l.beat AND o.gone IS NULL;
    SELECT array_agg(id) INTO ids FROM (
        SELECT st.id FROM {ns}.stream AS st JOIN {ns}.session AS se ON se.id = st.session
        WHERE st.finished <= now_ms - retention_ms ORDER BY st.finished LIMIT at_most FOR UPDATE SKIP LOCKED
    ) AS over;
    IF ids IS NOT NULL THEN
        more := cardinality(ids) = at_most;
        SELECT * INTO t FROM {ns}.forget(ids);
        sessions := t.sessions; streams := t.streams; events := t.events; bytes := t.bytes;
    END IF;
    thrown := 0;
    FOR s IN
        SELECT se.id FROM {ns}.owner AS o JOIN {ns}.session AS se ON se.owner = o.id
        WHERE o.gone < now_ms - max_age_ms LIMIT at_most FOR UPDATE SKIP LOCKED
    LOOP
        SELECT * INTO t FROM {ns}.remove_session(s.id);
        sessions := sessions + t.sessions; streams := streams + t.streams;
        events := events + t.events; bytes := bytes + t.bytes;
        thrown := thrown + 1;
    END LOOP;
    more := more OR thrown = at_most;
    WITH left_over AS (
        SELECT o.id FROM {ns}.owner AS o WHERE o.gone < now_ms - max_age_ms
            AND NOT EXISTS (SELECT FROM {ns}.session AS se WHERE se.owner = o.id)
            -- Whoever reads one of these has to learn that its owner is gone.
            AND NOT EXISTS (SELECT FROM {ns}.stream AS st WHERE st.owner = o.id AND st.finished IS NULL)
        LIMIT at_most FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM {ns}.owner AS o USING left_over AS l WHERE o.id = l.id RETURNING o.*
    ), counted AS (
        DELETE FROM {ns}.tally AS a USING gone AS g WHERE a.owner = g.id RETURNING a.*
    ), told AS (
        UPDATE {ns}.total AS o SET sessions = o.sessions - g.sessions, streams = o.streams - g.streams,
            events = o.events - g.events, bytes = o.bytes - g.bytes
        FROM (
            SELECT sum(gone.sessions) AS sessions, sum(gone.streams) AS streams, sum(gone.events) AS events,
                sum(gone.bytes) AS bytes FROM gone HAVING count(*) > 0
        ) AS g
    )
    SELECT coalesce(sum(c.sessions), 0) AS sessions, coalesce(sum(c.streams), 0) AS streams,
        coalesce(sum(c.events), 0) AS events, coalesce(sum(c.bytes), 0) AS bytes INTO t FROM counted AS c;
    -- What they had counted is counted on, by whoever removes them, and comes into the total with that.
    SELECT * INTO t FROM {ns}.count(me, my_lane, sessions + t.sessions::bigint, streams + t.streams::bigint,
        events + t.events::bigint, bytes + t.bytes::bigint);
    sessions := t.sessions; streams := t.streams; events := t.events; bytes := t.bytes;
END $$;

-- Deletes events of streams that are gone; true when there are more.
CREATE FUNCTION {ns}.empty_trash(at_most bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    r record;
    ids bigint[] := '{}';
    rows bigint[] := '{}';
    weight bigint := 0;
BEGIN
    PERFORM {ns}.begin(false, '1000');
    FOR r IN SELECT id, stream, events FROM {ns}.trash ORDER BY id LIMIT 512 FOR UPDATE SKIP LOCKED LOOP
        ids := ids || r.stream; rows := rows || r.id;
        weight := weight + r.events + 1;
        EXIT WHEN weight >= at_most;
    END LOOP;
    IF weight = 0 THEN RETURN false; END IF;
    DELETE FROM {ns}.event WHERE stream = ANY (ids);
    DELETE FROM {ns}.trash WHERE id = ANY (rows);
    RETURN weight >= at_most OR cardinality(ids) = 512;
END $$;

-- Tables with so many dead rows that their room has to be used again.
CREATE FUNCTION {ns}.worn(at_least bigint) RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT relname::text FROM pg_catalog.pg_class
    WHERE oid = ANY (ARRAY['{ns}.session', '{ns}.stream', '{ns}.event', '{ns}.trash', '{ns}.tally']::regclass[])
        AND pg_stat_get_dead_tuples(oid) >= at_least + pg_stat_get_live_tuples(oid) / 5
$$;

-- Brings everything back towards its bound: streams that finished first, then events of the largest. Only
-- one store object does it at a time. Returns what it has counted, and whether it could free anything.
CREATE FUNCTION {ns}.trim_all(
    me bigint, my_lane integer, to_free bigint, at_most integer, event_cost bigint,
    OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint, OUT trimmed bigint, OUT freed bigint
) LANGUAGE plpgsql AS $$
DECLARE
    s record;
    t record;
    ids bigint[] := '{}';
BEGIN
    PERFORM {ns}.begin(false, '1000');
    sessions := 0; streams := 0; events := 0; bytes := 0; trimmed := 0; freed := 0;
    IF pg_try_advisory_xact_lock(hashtextextended('{ns} trim', 0)) THEN
        FOR s IN
            SELECT st.id, st.bytes FROM {ns}.stream AS st JOIN {ns}.session AS se ON se.id = st.session
            WHERE st.finished IS NOT NULL ORDER BY st.finished LIMIT at_most FOR UPDATE SKIP LOCKED
        LOOP
            EXIT WHEN freed >= to_free;
            ids := ids || s.id; freed := freed + s.bytes;
        END LOOP;
        SELECT * INTO t FROM {ns}.forget(ids);
        sessions := t.sessions; streams := t.streams; events := t.events; bytes := t.bytes;
        IF freed < to_free AND cardinality(ids) < at_most THEN
            FOR s IN
                SELECT st.id, st.session, st.events, st.bytes FROM {ns}.stream AS st JOIN {ns}.session AS se ON se.id = st.session
                WHERE st.events > 1 ORDER BY st.bytes DESC LIMIT least(at_most, 32) FOR UPDATE SKIP LOCKED
            LOOP
                EXIT WHEN freed >= to_free;
                SELECT * INTO t FROM {ns}.shrink(s.id, s.events, s.bytes - greatest(s.bytes / 4, 1), 0, event_cost);
                PERFORM {ns}.grow(s.session, 0, t.bytes);
                events := events + t.events; bytes := bytes + t.bytes; trimmed := trimmed + t.trimmed;
                freed := freed - t.bytes;
            END LOOP;
        END IF;
    END IF;
    SELECT * INTO t FROM {ns}.count(me, my_lane, sessions, streams, events, bytes);
    sessions := t.sessions; streams := t.streams; events := t.events; bytes := t.bytes;
END $$;

-- Brings `total` up to date with what a store object has counted, and tells what it has of all others.
CREATE FUNCTION {ns}.sum_up(
    me bigint, OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint
) LANGUAGE plpgsql AS $$
DECLARE
    mine record;
    told record;
BEGIN
    SELECT coalesce(sum(t.sessions), 0)::bigint AS sessions, coalesce(sum(t.streams), 0)::bigint AS streams,
        coalesce(sum(t.events), 0)::bigint AS events, coalesce(sum(t.bytes), 0)::bigint AS bytes
    INTO mine FROM {ns}.tally AS t WHERE owner = me;
    SELECT o.sessions, o.streams, o.events, o.bytes INTO told FROM {ns}.owner AS o WHERE id = me FOR NO KEY UPDATE;
    IF FOUND AND mine <> told THEN
        UPDATE {ns}.owner AS o SET sessions = mine.sessions, streams = mine.streams, events = mine.events, bytes = mine.bytes
        WHERE id = me;
        UPDATE {ns}.total AS t SET
            sessions = t.sessions + mine.sessions - told.sessions, streams = t.streams + mine.streams - told.streams,
            events = t.events + mine.events - told.events, bytes = t.bytes + mine.bytes - told.bytes;
    END IF;
    SELECT t.sessions - mine.sessions, t.streams - mine.streams, t.events - mine.events, t.bytes - mine.bytes
    INTO sessions, streams, events, bytes FROM {ns}.total AS t;
END $$;

-- A sign of life. Tells what all others have counted, and the beats of those before it in the order of ids, and around:
-- each one that dies has one after it that sees that. What it costs does not depend on how many there are.
CREATE FUNCTION {ns}.beat(
    me bigint, OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint,
    OUT others bigint[], OUT beats bigint[]
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {ns}.begin(false, '1000');
    INSERT INTO {ns}.owner AS o (id) VALUES (me) ON CONFLICT (id) DO UPDATE SET beat = o.beat + 1, gone = NULL;
    SELECT coalesce(array_agg(near.id), '{}'), coalesce(array_agg(near.beat), '{}') INTO others, beats FROM (
        (SELECT id, beat FROM {ns}.owner WHERE gone IS NULL AND id < me ORDER BY id DESC LIMIT 8)
        UNION ALL
        (SELECT id, beat FROM {ns}.owner WHERE gone IS NULL AND id > me ORDER BY id DESC LIMIT 8)
    ) AS near;
    SELECT * INTO sessions, streams, events, bytes FROM {ns}.sum_up(me);
END $$;

CREATE FUNCTION {ns}.goodbye(me bigint, clock bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {ns}.begin(false, '1000');
    UPDATE {ns}.owner SET beat = -1, gone = coalesce(clock, {ns}.now_ms()) WHERE id = me;
    PERFORM {ns}.sum_up(me);
END $$;

-- The events after a position. The first row tells of the log: head, low, and the tag at that position; there
-- is none when there is no log.
CREATE FUNCTION {ns}.page(
    session_name bytea, stream_nonce bytea, after bigint, up_to bigint, max_events bigint, max_bytes bigint
) RETURNS TABLE (x bigint, y bigint, tag integer, frame bytea) LANGUAGE plpgsql STABLE AS $$
DECLARE
    s record;
    e record;
    read_bytes bigint := 0;
    read_events bigint := 0;
BEGIN
    SELECT st.id, head, low, low_tag INTO s FROM {ns}.session AS se JOIN {ns}.stream AS st ON st.session = se.id
    WHERE se.name = session_name AND st.nonce = stream_nonce;
    IF NOT FOUND THEN RETURN; END IF;
    x := s.head; y := s.low; tag := NULL; frame := NULL;
    IF after + 1 = s.low THEN
        tag := s.low_tag;
    ELSIF after >= s.low THEN
        SELECT ev.tag INTO tag FROM {ns}.event AS ev WHERE stream = s.id AND seq = after;
    END IF;
    RETURN NEXT;
    FOR e IN
        SELECT seq, kind, ev.tag, octet_length(ev.frame) AS length, ev.frame FROM {ns}.event AS ev
        WHERE stream = s.id AND seq > after AND seq <= up_to ORDER BY seq LIMIT max_events
    LOOP
        EXIT WHEN read_bytes > 0 AND read_bytes + e.length > max_bytes;
        read_bytes := read_bytes + e.length;
        x := e.seq; y := e.kind; tag := e.tag; frame := e.frame;
        RETURN NEXT;
    END LOOP;
END $$;

-- The owner and its beat are told when it is another one; no beat, where its row is gone.
CREATE FUNCTION {ns}.record(
    session_name bytea, stream_nonce bytea, me bigint,
    OUT head bigint, OUT low bigint, OUT is_finished boolean, OUT chain bigint, OUT retry_ms bigint, OUT claims bigint,
    OUT about bytea, OUT tail bytea, OUT owner bigint, OUT beat bigint
) RETURNS SETOF record LANGUAGE plpgsql STABLE AS $$
DECLARE
    s record;
BEGIN
    SELECT st.* INTO s FROM {ns}.session AS se JOIN {ns}.stream AS st ON st.session = se.id
    WHERE se.name = session_name AND st.nonce = stream_nonce;
    IF NOT FOUND THEN RETURN; END IF;
    head := s.head; low := s.low; is_finished := s.finished IS NOT NULL; chain := s.chain; retry_ms := s.retry_ms;
    claims := s.claims;
    SELECT frame INTO about FROM {ns}.event WHERE stream = s.id AND seq = 0;
    IF is_finished THEN
        SELECT frame INTO tail FROM {ns}.event WHERE stream = s.id AND seq = -1;
    END IF;
    IF s.owner <> me THEN
        owner := s.owner;
        SELECT o.beat INTO beat FROM {ns}.owner AS o WHERE o.id = s.owner;
    END IF;
    RETURN NEXT;
END $$;

CREATE FUNCTION {ns}.session_record(
    session_name bytea, me bigint, clock bigint,
    OUT revision text, OUT principal bytea, OUT retry_ms bigint, OUT lists smallint, OUT standalone bytea,
    OUT age_ms bigint, OUT owner bigint, OUT beat bigint
) RETURNS SETOF record LANGUAGE plpgsql STABLE AS $$
DECLARE
    s record;
BEGIN
    SELECT * INTO s FROM {ns}.session WHERE name = session_name AND created IS NOT NULL;
    IF NOT FOUND THEN RETURN; END IF;
    revision := s.revision; principal := s.principal; retry_ms := s.retry_ms; lists := s.lists;
    standalone := s.standalone;
    age_ms := greatest(coalesce(clock, {ns}.now_ms()) - s.created, 0);
    IF s.owner <> me THEN
        owner := s.owner;
        SELECT o.beat INTO beat FROM {ns}.owner AS o WHERE o.id = s.owner;
    END IF;
    RETURN NEXT;
END $$;

-- What can change in the logs with these names, to be compared with what it was.
CREATE FUNCTION {ns}.heads(me bigint, names bytea[], nonces bytea[])
RETURNS TABLE (at bigint, id bigint, head bigint, is_finished boolean, claims bigint, is_mine boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT u.at, st.id, st.head, st.finished IS NOT NULL, st.claims, st.owner = me
    FROM unnest(names, nonces) WITH ORDINALITY AS u (name, nonce, at)
    CROSS JOIN LATERAL (
        SELECT * FROM {ns}.stream AS s WHERE s.session = (SELECT se.id FROM {ns}.session AS se WHERE se.name = u.name)
            AND s.nonce = u.nonce OFFSET 0
    ) AS st;
END $$;

-- Tells the other store objects. Never part of a transaction that writes: its lock is one for the whole server.
CREATE FUNCTION {ns}.tell(payloads text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_notify('{channel}', payload) FROM unnest(payloads) AS payload;
END $$;
