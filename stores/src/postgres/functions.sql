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

-- Forgets streams whose sessions' rows are locked, with their messages.
CREATE FUNCTION {ns}.forget(ids bigint[], OUT streams bigint, OUT events bigint, OUT bytes bigint) LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM {ns}.stream WHERE id = ANY (ids) RETURNING id, session, stream.events, stream.bytes
    ), thrown AS (
        INSERT INTO {ns}.trash (stream, events) SELECT id, gone.events FROM gone
    ), unasked AS (
        DELETE FROM {ns}.message AS m USING gone WHERE m.session = gone.session AND m.stream = gone.id
        RETURNING m.session, m.bytes
    ), freed AS (
        SELECT session, 1 AS streams, gone.events, gone.bytes FROM gone
        UNION ALL SELECT session, 0, 0, unasked.bytes FROM unasked
    ), shrunk AS (
        UPDATE {ns}.session AS se SET bytes = se.bytes - of.bytes
        FROM (SELECT session, sum(freed.bytes) AS bytes FROM freed GROUP BY session) AS of WHERE se.id = of.session
    )
    SELECT -coalesce(sum(freed.streams), 0), -coalesce(sum(freed.events), 0), -coalesce(sum(freed.bytes), 0)
    INTO streams, events, bytes FROM freed;
END $$;

-- Forgets sessions whose rows are locked and whose streams are forgotten.
CREATE FUNCTION {ns}.end_sessions(ids bigint[], now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM {ns}.session WHERE id = ANY (ids) RETURNING name, epoch
    )
    INSERT INTO {ns}.ended SELECT name, now_ms FROM gone WHERE epoch > 1
    ON CONFLICT (name) DO UPDATE SET at = excluded.at;
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

-- The session's finished streams whose retention ends first go first, then the oldest events of its largest. Its row is locked.
CREATE FUNCTION {ns}.trim_session(
    session_id bigint, held bigint, written bigint[], max_bytes bigint, event_cost bigint,
    OUT streams bigint, OUT events bigint, OUT bytes bigint, OUT trimmed bigint
) LANGUAGE plpgsql AS $$
DECLARE
    s record;
    t record;
    ids bigint[] := '{}';
    -- An eighth more than needed, so that the next events do not look through all streams again.
    over bigint := held - (max_bytes - max_bytes / 8);
    d_bytes bigint := 0;
BEGIN
    trimmed := 0;
    FOR s IN
        SELECT id, st.bytes FROM {ns}.stream AS st WHERE session = session_id AND kept_until IS NOT NULL AND id <> ALL (written)
        ORDER BY kept_until, id
    LOOP
        EXIT WHEN over <= 0;
        ids := ids || s.id; over := over - s.bytes;
    END LOOP;
    SELECT * INTO streams, events, bytes FROM {ns}.forget(ids);
    WHILE held + bytes + d_bytes > max_bytes LOOP
        SELECT id, st.bytes, st.events INTO s FROM {ns}.stream AS st
        WHERE session = session_id AND st.events > 1 ORDER BY st.bytes DESC LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT * INTO t FROM {ns}.shrink(s.id, s.events, s.bytes - greatest(s.bytes / 4, 1), 0, event_cost);
        EXIT WHEN t.events = 0;
        d_bytes := d_bytes + t.bytes; events := events + t.events; trimmed := trimmed + t.trimmed;
    END LOOP;
    UPDATE {ns}.session AS se SET bytes = se.bytes + d_bytes WHERE id = session_id AND d_bytes <> 0;
    bytes := bytes + d_bytes;
END $$;

-- Retention, a bounded part of it: `more` when there is more. What others have locked is left for later.
-- lost: the owners that `me` saw stand still, at these beats.
CREATE FUNCTION {ns}.sweep(
    me bigint, my_lane integer, clock bigint, max_age_ms bigint, at_most integer,
    lost bigint[], lost_beats bigint[],
    OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint, OUT more boolean
) LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := coalesce(clock, {ns}.now_ms());
    left_ids bigint[];
    ids bigint[];
    names bytea[];
    t record;
BEGIN
    PERFORM {ns}.begin(false, '1000');
    UPDATE {ns}.owner AS o SET gone = now_ms FROM unnest(lost, lost_beats) AS l (id, beat)
    WHERE o.id = l.id AND o.beat = l.beat AND o.gone IS NULL;
    -- Nobody takes over what was let go of, or has lost its owner.
    left_ids := ARRAY(
        SELECT se.id FROM {ns}.session AS se
        WHERE se.released < now_ms - max_age_ms LIMIT at_most FOR UPDATE SKIP LOCKED
    );
    left_ids := left_ids || ARRAY(
        SELECT se.id FROM {ns}.owner AS o JOIN {ns}.session AS se ON se.owner = o.id
        WHERE o.gone < now_ms - max_age_ms AND NOT se.id = ANY (left_ids)
        LIMIT at_most - cardinality(left_ids) FOR UPDATE SKIP LOCKED
    );
    ids := ARRAY(
        SELECT st.id FROM {ns}.stream AS st JOIN {ns}.session AS se ON se.id = st.session
        WHERE st.kept_until <= now_ms ORDER BY st.kept_until LIMIT at_most FOR UPDATE SKIP LOCKED
    );
    names := ARRAY(
        SELECT e.name FROM {ns}.ended AS e WHERE e.at <= now_ms - max_age_ms LIMIT at_most FOR UPDATE SKIP LOCKED
    );
    more := at_most IN (cardinality(left_ids), cardinality(ids), cardinality(names));
    DELETE FROM {ns}.ended WHERE name = ANY (names);
    SELECT * INTO streams, events, bytes
    FROM {ns}.forget(ids || ARRAY(SELECT st.id FROM {ns}.stream AS st WHERE st.session = ANY (left_ids)));
    PERFORM {ns}.end_sessions(left_ids, now_ms);
    sessions := -cardinality(left_ids);
    WITH left_over AS (
        SELECT o.id FROM {ns}.owner AS o WHERE o.gone < now_ms - max_age_ms
            AND NOT EXISTS (SELECT FROM {ns}.session AS se WHERE se.owner = o.id)
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
    -- The process that removes them goes on with their counts, so that these stay in the total.
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
    WHERE oid = ANY (ARRAY[
            '{ns}.session', '{ns}.ended', '{ns}.stream', '{ns}.event', '{ns}.message', '{ns}.trash', '{ns}.tally'
        ]::regclass[])
        AND pg_stat_get_dead_tuples(oid) >= at_least + pg_stat_get_live_tuples(oid) / 5
$$;

-- Brings everything back towards its bound: finished streams whose retention ends first, then events of the largest. Only
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
            WHERE st.kept_until IS NOT NULL ORDER BY st.kept_until LIMIT at_most FOR UPDATE SKIP LOCKED
        LOOP
            EXIT WHEN freed >= to_free;
            ids := ids || s.id; freed := freed + s.bytes;
        END LOOP;
        SELECT * INTO streams, events, bytes FROM {ns}.forget(ids);
        IF freed < to_free AND cardinality(ids) < at_most THEN
            FOR s IN
                SELECT st.id, st.session, st.events, st.bytes FROM {ns}.stream AS st JOIN {ns}.session AS se ON se.id = st.session
                WHERE st.events > 1 ORDER BY st.bytes DESC LIMIT least(at_most, 32) FOR UPDATE SKIP LOCKED
            LOOP
                EXIT WHEN freed >= to_free;
                SELECT * INTO t FROM {ns}.shrink(s.id, s.events, s.bytes - greatest(s.bytes / 4, 1), 0, event_cost);
                UPDATE {ns}.session AS se SET bytes = se.bytes + t.bytes WHERE id = s.session;
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
-- posted: its sessions for which a message waits. The process that left it may have ended before it told that.
-- run: another one on another server, and on the same one after a crash, which takes its statistics along.
CREATE FUNCTION {ns}.beat(
    me bigint, OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint,
    OUT others bigint[], OUT beats bigint[], OUT posted bytea[], OUT run text
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {ns}.begin(false, '1000');
    INSERT INTO {ns}.owner AS o (id) VALUES (me) ON CONFLICT (id) DO UPDATE SET beat = o.beat + 1, gone = NULL;
    SELECT coalesce(array_agg(near.id), '{}'), coalesce(array_agg(near.beat), '{}') INTO others, beats FROM (
        (SELECT id, beat FROM {ns}.owner WHERE gone IS NULL AND id < me ORDER BY id DESC LIMIT 8)
        UNION ALL
        (SELECT id, beat FROM {ns}.owner WHERE gone IS NULL AND id > me ORDER BY id DESC LIMIT 8)
    ) AS near;
    posted := ARRAY(
        SELECT DISTINCT se.name FROM {ns}.message AS m JOIN {ns}.session AS se ON se.id = m.session
        WHERE NOT m.is_taken AND se.owner = me
    );
    run := concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()),
        extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()));
    SELECT * INTO sessions, streams, events, bytes FROM {ns}.sum_up(me);
END $$;

CREATE FUNCTION {ns}.goodbye(me bigint, clock bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {ns}.begin(false, '1000');
    UPDATE {ns}.owner SET beat = -1, gone = coalesce(clock, {ns}.now_ms()) WHERE id = me;
    PERFORM {ns}.sum_up(me);
END $$;

-- The chain tag at a position, where it is known.
CREATE FUNCTION {ns}.tag_at(st {ns}.stream, after bigint) RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN after < st.low THEN CASE WHEN after = st.low - 1 THEN st.low_tag END
        ELSE (SELECT tag FROM {ns}.event WHERE stream = st.id AND seq = after) END;
END $$;

-- A session of one of these principals, or of any where there are none; a log of it, and its events after a position.
CREATE FUNCTION {ns}.look(
    write integer, me bigint, session_name bytea, stream_nonce bytea, principals bytea[], after bigint, up_to bigint,
    max_events bigint, max_bytes bigint
) RETURNS SETOF {ns}.found LANGUAGE plpgsql STABLE AS $$
DECLARE
    se {ns}.session;
    st {ns}.stream;
    f {ns}.found;
BEGIN
    SELECT * INTO se FROM {ns}.session WHERE name = session_name;
    IF NOT FOUND THEN RETURN; END IF;
    f.write := write;
    f.is_foreign := array_position(principals, se.principal) IS NULL AND principals IS NOT NULL;
    IF f.is_foreign THEN RETURN NEXT f; RETURN; END IF;
    f.revision := se.revision; f.principal := se.principal; f.retry_ms := se.retry_ms; f.lists := se.lists;
    f.standalone := se.standalone;
    IF principals IS NOT NULL THEN f.note := se.note; END IF;
    IF se.owner <> me OR se.released IS NOT NULL THEN
        f.owner := se.owner; f.epoch := se.epoch; f.salt := se.salt;
        f.beat := CASE WHEN se.released IS NOT NULL THEN -1 ELSE (SELECT o.beat FROM {ns}.owner AS o WHERE o.id = se.owner) END;
    END IF;
    SELECT * INTO st FROM {ns}.stream WHERE session = se.id AND nonce = stream_nonce;
    IF FOUND THEN
        f.head := st.head; f.low := st.low; f.tag_at := {ns}.tag_at(st, after); f.chain := st.chain;
        f.is_finished := st.kept_until IS NOT NULL; f.readers := st.readers; f.paced := st.paced;
        IF principals IS NOT NULL THEN
            f.about := (SELECT frame FROM {ns}.event WHERE stream = st.id AND seq = 0);
        END IF;
        IF f.is_finished THEN
            f.tail := (SELECT frame FROM {ns}.event WHERE stream = st.id AND seq = -1);
        END IF;
        SELECT array_agg(seq), array_agg(kind), array_agg(tag), array_agg(frame) INTO f.seqs, f.kinds, f.tags, f.frames
        FROM (
            SELECT seq, kind, tag, frame, sum(octet_length(frame)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS so_far
            FROM {ns}.event WHERE stream = st.id AND seq > after AND seq <= up_to ORDER BY seq LIMIT max_events
        ) AS e
        -- The first that is not empty comes whatever its size.
        WHERE so_far <= max_bytes OR so_far = octet_length(frame);
    END IF;
    RETURN NEXT f;
END $$;

-- The logs of a session that have no end, and whose message does not wait.
CREATE FUNCTION {ns}.running(write integer, session_id bigint) RETURNS SETOF {ns}.found LANGUAGE plpgsql STABLE AS $$
DECLARE
    f {ns}.found;
BEGIN
    f.write := write;
    FOR f.nonce, f.head, f.chain, f.about IN
        SELECT nonce, head, chain, frame FROM {ns}.stream LEFT JOIN {ns}.event ON stream = id AND seq = 0
        WHERE session = session_id AND kept_until IS NULL AND NOT EXISTS (
            SELECT FROM {ns}.message AS m WHERE m.session = session_id AND m.stream = id AND NOT m.is_taken)
    LOOP
        RETURN NEXT f;
    END LOOP;
END $$;

-- What can change in the logs of these sessions, and the last message that waits, to be compared with what it was. A session
-- without logs has a row, too.
CREATE FUNCTION {ns}.heads(me bigint, names bytea[])
RETURNS TABLE (
    at bigint, is_mine boolean, nonce bytea, head bigint, is_finished boolean, readers bigint, waiting bigint
)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT u.at, se.owner = me, st.nonce, st.head, st.kept_until IS NOT NULL, st.readers, m.waiting
    FROM unnest(names) WITH ORDINALITY AS u (name, at)
    CROSS JOIN LATERAL (SELECT * FROM {ns}.session AS s WHERE s.name = u.name OFFSET 0) AS se
    CROSS JOIN LATERAL (
        SELECT max(of.stream) AS waiting FROM {ns}.message AS of WHERE of.session = se.id AND NOT of.is_taken
    ) AS m
    LEFT JOIN LATERAL (SELECT * FROM {ns}.stream AS s WHERE s.session = se.id OFFSET 0) AS st ON true;
END $$;

-- Tells one store object, which listens to the channel of its number.
CREATE FUNCTION {ns}.notify(hearer bigint, payload text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('tailrope:' || lpad(to_hex(hearer), 16, '0'), payload)
$$;

-- Tells several of what was written. The lock that it takes is one for the whole server, so a transaction that appends is
-- not the place for it.
CREATE FUNCTION {ns}.tell(hearers bigint[], payloads text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM {ns}.notify(hearer, payload) FROM unnest(hearers, payloads) AS u (hearer, payload);
END $$;
