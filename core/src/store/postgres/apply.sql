-- One transaction of a store object: what its callers asked for, in this order, which is by session. Rows
-- are locked in the order of session and stream everywhere, so that two store objects do not lock each other out.
-- bounds: events and bytes of a stream, bytes of a session, age, cost of an event, cost of a log.
-- lost: the owners that `me` saw stand still, at these beats.
-- verdicts: 0 done, 1 gone, 2 fenced, 3 rolled back, 4 out of order, 5 changed under our hands. `again` is a
-- second try of what may have been committed: then an append is also done when later ones came behind it.
CREATE FUNCTION {ns}.apply(
    me bigint, my_lane integer, clock bigint, power boolean, again boolean, lock_ms text, bounds bigint[],
    lost bigint[], lost_beats bigint[],
    kinds smallint[], names bytea[], nonces bytea[], a_s bigint[], b_s bigint[], c_s bigint[], counts integer[],
    ats integer[], sizes bigint[], bodies bytea[], abouts bytea[], tails bytea[], retries bigint[], notes text[],
    e_kinds smallint[], e_tags integer[], e_offsets integer[], e_lengths integer[],
    OUT verdicts smallint[], OUT results bigint[],
    OUT sessions bigint, OUT streams bigint, OUT events bigint, OUT bytes bigint, OUT trimmed bigint
) LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := coalesce(clock, {ns}.now_ms());
    max_events bigint := bounds[1];
    max_bytes bigint := bounds[2];
    max_session bigint := bounds[3];
    oldest bigint := now_ms - bounds[4];
    event_cost bigint := bounds[5];
    log_cost bigint := bounds[6];
    r record;
    s record;
    t record;
    name_now bytea;
    session_id bigint;
    touched bigint[] := '{}';
    d_streams bigint := 0;
    d_bytes bigint := 0;
    tail_bytes bigint;
    ended bigint;
    is_written boolean;
    verdict smallint;
    result bigint;
BEGIN
    PERFORM {ns}.begin(power, lock_ms);
    verdicts := '{}'; results := '{}';
    sessions := 0; streams := 0; events := 0; bytes := 0; trimmed := 0;
    FOR r IN
        SELECT * FROM unnest(kinds, names, nonces, a_s, b_s, c_s, counts, ats, sizes, bodies, abouts, tails, retries, notes)
            AS u (kind, name, nonce, a, b, c, n, at, size, body, about, tail, retry, note)
        UNION ALL SELECT 0, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL
    LOOP
        IF r.name IS DISTINCT FROM name_now THEN
            IF d_streams <> 0 OR d_bytes <> 0 THEN
                SELECT * INTO STRICT t FROM {ns}.grow(session_id, d_streams, d_bytes);
                sessions := sessions + t.sessions; streams := streams + d_streams; bytes := bytes + d_bytes;
                IF t.bytes > max_session THEN
                    SELECT * INTO t FROM {ns}.trim_session(session_id, touched, max_session, event_cost);
                    sessions := sessions + t.sessions; streams := streams + t.streams; events := events + t.events;
                    bytes := bytes + t.bytes; trimmed := trimmed + t.trimmed;
                END IF;
            END IF;
            EXIT WHEN r.kind = 0;
            name_now := r.name; touched := '{}'; d_streams := 0; d_bytes := 0;
            session_id := NULL;
            SELECT id INTO session_id FROM {ns}.session WHERE name = name_now;
        END IF;
        EXIT WHEN r.kind = 0;
        verdict := 0; result := 0;

        IF r.kind = 1 THEN -- append
            ended := CASE WHEN r.tail IS NOT NULL OR (r.n > 0 AND e_kinds[r.at + r.n - 1] = 3) THEN now_ms END;
            tail_bytes := coalesce(octet_length(r.tail), 0);
            is_written := false;
            IF r.a = 1 THEN
                IF session_id IS NULL THEN
                    INSERT INTO {ns}.session (name, owner) VALUES (r.name, me) ON CONFLICT (name) DO NOTHING
                    RETURNING id INTO session_id;
                    IF NOT FOUND THEN
                        SELECT id INTO STRICT session_id FROM {ns}.session WHERE name = r.name;
                    END IF;
                END IF;
                INSERT INTO {ns}.stream AS st (session, nonce, owner, head, low, low_tag, low_at, chain, events, bytes,
                    claims, finished, retry_ms)
                VALUES (session_id, r.nonce, me, r.n, 1, r.b::bit(32)::integer, now_ms, r.c, r.n,
                    log_cost + octet_length(r.about) + r.size + tail_bytes, 0, ended, r.retry)
                ON CONFLICT (session, nonce) DO NOTHING RETURNING id, st.events, st.bytes, low, head, low_at INTO s;
                is_written := FOUND;
                IF is_written THEN
                    d_streams := d_streams + 1; d_bytes := d_bytes + log_cost + octet_length(r.about);
                    IF r.about <> '' THEN
                        INSERT INTO {ns}.event VALUES (s.id, 0, now_ms, 0, 0, true, r.about);
                    END IF;
                END IF;
            END IF;
            IF NOT is_written THEN
                UPDATE {ns}.stream AS st SET
                    head = st.head + r.n, chain = r.c, events = st.events + r.n, bytes = st.bytes + r.size + tail_bytes,
                    low_at = CASE WHEN st.low > st.head THEN now_ms ELSE st.low_at END,
                    finished = ended, retry_ms = coalesce(r.retry, st.retry_ms)
                WHERE session = session_id AND nonce = r.nonce AND owner = me AND finished IS NULL
                    AND st.head = r.a - 1 AND chain = r.b
                RETURNING id, st.events, st.bytes, low, head, low_at INTO s;
                is_written := FOUND;
            END IF;
            IF is_written THEN
                IF r.n = 1 THEN
                    INSERT INTO {ns}.event VALUES (s.id, r.a, now_ms, e_tags[r.at], e_kinds[r.at], e_kinds[r.at] >= 2, r.body);
                ELSIF r.n > 1 THEN
                    INSERT INTO {ns}.event
                    SELECT s.id, r.a + i, now_ms, e_tags[r.at + i], e_kinds[r.at + i], e_kinds[r.at + i] >= 2,
                        substring(r.body FROM e_offsets[r.at + i] + 1 FOR e_lengths[r.at + i])
                    FROM generate_series(0, r.n - 1) AS i;
                END IF;
                touched := touched || s.id;
                events := events + r.n; d_bytes := d_bytes + r.size;
                IF s.events > max_events OR s.bytes > max_bytes OR (s.low < s.head AND s.low_at < oldest) THEN
                    SELECT * INTO t FROM {ns}.shrink(s.id, max_events, max_bytes, oldest, event_cost);
                    events := events + t.events; d_bytes := d_bytes + t.bytes; trimmed := trimmed + t.trimmed;
                END IF;
            ELSE
                -- Locked, so that there is a commit, which waits for a synchronous replica: the one before may have been
                -- called off while it did, and is done without.
                SELECT *, (head, chain) = (r.a + r.n - 1, r.c) AS is_there INTO s
                FROM {ns}.stream WHERE session = session_id AND nonce = r.nonce FOR NO KEY UPDATE;
                -- Null: the events are there, and what comes with them is to be written.
                verdict := CASE
                    WHEN NOT FOUND THEN 1
                    WHEN s.is_there AND (s.finished IS NOT NULL OR (r.tail IS NULL AND r.retry IS NULL)) THEN 0
                    WHEN again AND s.head >= r.a + r.n AND (r.a + r.n = 1 OR EXISTS (
                        SELECT FROM {ns}.event WHERE stream = s.id AND seq = r.a + r.n - 1
                            AND tag = r.c::bit(32)::integer)) THEN 0
                    WHEN s.finished IS NOT NULL THEN 1
                    WHEN s.owner <> me AND NOT (r.n = 0 AND r.tail IS NOT NULL AND EXISTS (
                        SELECT FROM {ns}.owner AS o JOIN unnest(lost, lost_beats) AS l (id, beat) USING (id, beat)
                        WHERE id = s.owner)) THEN 2
                    WHEN s.is_there THEN NULL
                    WHEN s.head + 1 < r.a THEN 3
                    WHEN s.head + 1 > r.a THEN 4
                    WHEN s.chain <> r.b THEN 3
                    ELSE 5 END;
                is_written := verdict IS NULL;
                IF is_written THEN
                    verdict := 0;
                    UPDATE {ns}.stream AS st SET owner = me, bytes = st.bytes + tail_bytes, finished = ended,
                        retry_ms = coalesce(r.retry, st.retry_ms)
                    WHERE id = s.id;
                END IF;
            END IF;
            IF is_written AND r.tail IS NOT NULL THEN
                INSERT INTO {ns}.event VALUES (s.id, -1, now_ms, 0, 0, true, r.tail);
                d_bytes := d_bytes + tail_bytes;
            END IF;

        ELSIF r.kind = 2 THEN -- settle
            SELECT * INTO s FROM {ns}.stream WHERE session = session_id AND nonce = r.nonce FOR NO KEY UPDATE;
            IF FOUND AND r.a >= s.low THEN
                UPDATE {ns}.event SET pinned = false WHERE stream = s.id AND seq = r.a AND kind = 2 AND pinned;
            ELSIF FOUND THEN
                DELETE FROM {ns}.event WHERE stream = s.id AND seq = r.a AND kind = 2
                RETURNING octet_length(frame) + event_cost AS freed INTO t;
                IF FOUND THEN
                    UPDATE {ns}.stream AS st SET events = st.events - 1, bytes = st.bytes - t.freed WHERE id = s.id;
                    events := events - 1; d_bytes := d_bytes - t.freed;
                END IF;
            END IF;

        ELSIF r.kind = 3 THEN -- drop_stream
            DELETE FROM {ns}.stream AS st WHERE session = session_id AND nonce = r.nonce
            RETURNING id, st.events, st.bytes INTO s;
            IF FOUND THEN
                INSERT INTO {ns}.trash (stream, events) VALUES (s.id, s.events);
                d_streams := d_streams - 1; d_bytes := d_bytes - s.bytes; events := events - s.events;
            END IF;

        ELSIF r.kind = 4 THEN -- drop_session
            IF session_id IS NOT NULL THEN
                IF d_streams <> 0 OR d_bytes <> 0 THEN
                    SELECT * INTO STRICT t FROM {ns}.grow(session_id, d_streams, d_bytes);
                    sessions := sessions + t.sessions; streams := streams + d_streams; bytes := bytes + d_bytes;
                END IF;
                SELECT * INTO t FROM {ns}.remove_session(session_id);
                sessions := sessions + t.sessions; streams := streams + t.streams; events := events + t.events;
                bytes := bytes + t.bytes;
                session_id := NULL; touched := '{}'; d_streams := 0; d_bytes := 0;
            END IF;

        ELSIF r.kind = 5 THEN -- put_session
            INSERT INTO {ns}.session AS se
                (name, owner, created, revision, principal, retry_ms, lists, standalone)
            VALUES (r.name, me, now_ms, r.note, r.body, r.retry, r.a, r.nonce)
            ON CONFLICT (name) DO UPDATE SET
                owner = excluded.owner, created = coalesce(se.created, excluded.created),
                revision = excluded.revision, principal = excluded.principal, retry_ms = excluded.retry_ms,
                lists = excluded.lists, standalone = excluded.standalone
            RETURNING id INTO session_id;

        ELSIF r.kind = 6 THEN -- claim
            UPDATE {ns}.stream AS st SET claims = st.claims + 1 WHERE session = session_id AND nonce = r.nonce
            RETURNING claims INTO s;
            IF FOUND THEN result := s.claims; ELSE verdict := 1; END IF;
        END IF;

        verdicts := verdicts || verdict;
        results := results || result;
    END LOOP;
    SELECT * INTO STRICT t FROM {ns}.count(me, my_lane, sessions, streams, events, bytes);
    sessions := t.sessions; streams := t.streams; events := t.events; bytes := t.bytes;
END $$;
