-- One transaction of a store object: what its callers asked for, in this order, which is by session. A session's row is
-- locked before anything is read of it: nobody else changes it or its logs until the commit. Everybody locks sessions in
-- the same order, so that two store objects do not lock each other out.
-- bounds: events and bytes of a stream, bytes of a session, age, cost of an event, cost of a log, messages that wait, their
-- bytes, messages that are taken at a time, how long a log is kept behind its end.
-- verdicts: 0 done, 1 gone, 2 fenced, 3 rolled back, 4 out of order, 5 too many messages wait, 6 too many bytes of them,
-- 7 the message has begun. `again` is a second try of what may have been committed: then an append is also done when later
-- ones came behind it.
CREATE FUNCTION {ns}.apply(
    me bigint, my_lane integer, clock bigint, power boolean, again boolean, lock_ms text, bounds bigint[],
    kinds smallint[], names bytea[], epochs bigint[], salts bigint[], nonces bytea[], a_s bigint[], b_s bigint[],
    c_s bigint[], counts integer[], ats integer[], sizes bigint[], bodies bytea[], abouts bytea[], tails bytea[],
    retries bigint[], paces bytea[], revisions text[], e_kinds smallint[], e_tags integer[], e_offsets integer[],
    e_lengths integer[], principals bytea[]
) RETURNS SETOF {ns}.found LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := coalesce(clock, {ns}.now_ms());
    max_events bigint := bounds[1];
    max_bytes bigint := bounds[2];
    max_session bigint := bounds[3];
    oldest bigint := now_ms - bounds[4];
    event_cost bigint := bounds[5];
    log_cost bigint := bounds[6];
    r record;
    se {ns}.session;
    st {ns}.stream;
    t record;
    done {ns}.found;
    lost {ns}.found;
    name_now bytea;
    touched bigint[];
    -- Of the session.
    d_bytes bigint := 0;
    -- Of all.
    n_sessions bigint := 0;
    n_streams bigint := 0;
    n_events bigint := 0;
    n_bytes bigint := 0;
    n_trimmed bigint := 0;
    is_new boolean;
    is_there boolean;
    added bigint;
    added_bytes bigint;
    freed bigint;
    ended bigint;
    verdict smallint;
    -- Who is to be told of the write.
    told bigint[];
BEGIN
    PERFORM {ns}.begin(power, lock_ms);
    done.kinds := '{}'; done.tags := '{}'; done.hearers := '{}';
    FOR r IN
        SELECT * FROM unnest(kinds, names, epochs, salts, nonces, a_s, b_s, c_s, counts, ats, sizes, bodies, abouts, tails,
            retries, paces, revisions) WITH ORDINALITY
            AS u (kind, name, epoch, salt, nonce, a, b, c, n, at, size, body, about, tail, retry, paced, revision, write)
        UNION ALL SELECT 0, NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0
    LOOP
        IF r.name IS DISTINCT FROM name_now THEN
            n_bytes := n_bytes + d_bytes;
            IF d_bytes <> 0 THEN
                UPDATE {ns}.session SET bytes = bytes + d_bytes WHERE id = se.id RETURNING * INTO se;
                IF se.bytes > max_session THEN
                    SELECT * INTO t FROM {ns}.trim_session(se.id, se.bytes, touched, max_session, event_cost);
                    n_streams := n_streams + t.streams; n_events := n_events + t.events;
                    n_bytes := n_bytes + t.bytes; n_trimmed := n_trimmed + t.trimmed;
                END IF;
            END IF;
            EXIT WHEN r.kind = 0;
            name_now := r.name; touched := '{}'; d_bytes := 0;
            -- Locked also where nothing changes, so that there is a commit, which waits for a synchronous replica: the one
            -- before may have been called off while it did, and is done without.
            SELECT * INTO se FROM {ns}.session WHERE name = r.name FOR NO KEY UPDATE;
        END IF;
        told := NULL;
        verdict := CASE
            WHEN r.kind IN (6, 7) THEN 0
            WHEN se.id IS NULL THEN 1
            WHEN r.kind <> 8 AND (se.epoch, se.salt) <> (r.epoch, r.salt) THEN 2
            ELSE 0 END;
        IF verdict = 0 AND r.kind IN (1, 2, 8) THEN
            SELECT * INTO st FROM {ns}.stream WHERE session = se.id AND nonce = r.nonce;
        END IF;

        IF verdict <> 0 THEN
            NULL;

        ELSIF r.kind = 1 THEN -- append
            is_new := st.id IS NULL AND r.a = 1;
            is_there := r.n = 0 OR (st.head, st.chain) = (r.a + r.n - 1, r.c);
            -- Null: there is something to write.
            verdict := CASE
                WHEN is_new THEN NULL
                WHEN st.id IS NULL THEN 1
                WHEN is_there AND (st.kept_until IS NOT NULL OR (r.tail IS NULL AND r.paced IS NULL)) THEN 0
                WHEN again AND st.head >= r.a + r.n AND EXISTS (
                    SELECT FROM {ns}.event WHERE stream = st.id AND seq = r.a + r.n - 1
                        AND tag = r.c::bit(32)::integer) THEN 0
                WHEN st.kept_until IS NOT NULL THEN 1
                WHEN is_there THEN NULL
                WHEN st.head + 1 > r.a THEN 4
                WHEN st.head + 1 < r.a OR st.chain <> r.b THEN 3 END;
            IF verdict IS NULL THEN
                verdict := 0;
                added := CASE WHEN is_there THEN 0 ELSE r.n END;
                added_bytes := coalesce(octet_length(r.tail), 0) + CASE WHEN is_there THEN 0 ELSE r.size END;
                st.kept_ms := CASE WHEN r.paced IS NULL THEN st.kept_ms ELSE r.retry END;
                ended := CASE WHEN r.tail IS NOT NULL OR (r.n > 0 AND e_kinds[r.at + r.n - 1] = 3)
                    THEN now_ms + coalesce(st.kept_ms, bounds[10]) END;
                IF is_new THEN
                    added_bytes := added_bytes + log_cost + octet_length(r.about);
                    INSERT INTO {ns}.stream
                        (session, nonce, head, low, low_tag, low_at, chain, events, bytes, kept_until, paced, kept_ms)
                    VALUES (se.id, r.nonce, r.n, 1, r.b::bit(32)::integer, now_ms, r.c, r.n, added_bytes, ended, r.paced, st.kept_ms)
                    RETURNING * INTO st;
                    n_streams := n_streams + 1;
                    IF r.about <> '' THEN
                        INSERT INTO {ns}.event VALUES (st.id, 0, now_ms, 0, 0, true, r.about);
                    END IF;
                ELSE
                    IF st.head = 0 THEN
                        d_bytes := d_bytes - {ns}.forget_waiting(se.id, st.id);
                    END IF;
                    UPDATE {ns}.stream SET
                        head = head + added, chain = CASE WHEN is_there THEN chain ELSE r.c END,
                        events = events + added, bytes = bytes + added_bytes,
                        low_at = CASE WHEN low > head THEN now_ms ELSE low_at END,
                        kept_until = ended, paced = coalesce(r.paced, paced), kept_ms = st.kept_ms
                    WHERE id = st.id RETURNING * INTO st;
                END IF;
                IF added = 1 THEN
                    INSERT INTO {ns}.event VALUES (st.id, r.a, now_ms, e_tags[r.at], e_kinds[r.at], e_kinds[r.at] >= 2, r.body);
                ELSIF added > 1 THEN
                    INSERT INTO {ns}.event
                    SELECT st.id, r.a + i, now_ms, e_tags[r.at + i], e_kinds[r.at + i], e_kinds[r.at + i] >= 2,
                        substring(r.body FROM e_offsets[r.at + i] + 1 FOR e_lengths[r.at + i])
                    FROM generate_series(0, r.n - 1) AS i;
                END IF;
                IF r.tail IS NOT NULL THEN
                    INSERT INTO {ns}.event VALUES (st.id, -1, now_ms, 0, 0, true, r.tail);
                END IF;
                touched := touched || st.id;
                n_events := n_events + added; d_bytes := d_bytes + added_bytes;
                IF st.events > max_events OR st.bytes > max_bytes OR (st.low < st.head AND st.low_at < oldest) THEN
                    SELECT * INTO t FROM {ns}.shrink(st.id, max_events, max_bytes, oldest, event_cost);
                    n_events := n_events + t.events; d_bytes := d_bytes + t.bytes; n_trimmed := n_trimmed + t.trimmed;
                END IF;
            END IF;
            -- Also where an earlier try did it: its answer was lost, and with it who is to be told.
            IF verdict = 0 THEN told := st.followers; END IF;

        ELSIF r.kind = 2 THEN -- settle
            IF r.a >= st.low THEN
                UPDATE {ns}.event SET pinned = false WHERE stream = st.id AND seq = r.a AND kind = 2 AND pinned;
            ELSE
                DELETE FROM {ns}.event WHERE stream = st.id AND seq = r.a AND kind = 2
                RETURNING octet_length(frame) + event_cost AS freed INTO t;
                IF FOUND THEN
                    UPDATE {ns}.stream SET events = events - 1, bytes = bytes - t.freed WHERE id = st.id;
                    n_events := n_events - 1; d_bytes := d_bytes - t.freed;
                END IF;
            END IF;

        ELSIF r.kind IN (3, 4) THEN -- drop_stream, drop_session
            told := ARRAY(
                SELECT DISTINCT unnest(followers) FROM {ns}.stream WHERE session = se.id AND (r.kind = 4 OR nonce = r.nonce));
            SELECT * INTO t FROM {ns}.forget(ARRAY(
                SELECT id FROM {ns}.stream WHERE session = se.id AND (r.kind = 4 OR nonce = r.nonce)));
            n_streams := n_streams + t.streams; n_events := n_events + t.events; n_bytes := n_bytes + t.bytes;
            IF r.kind = 4 THEN
                PERFORM {ns}.end_sessions(ARRAY[se.id], now_ms);
                n_sessions := n_sessions - 1; n_bytes := n_bytes + d_bytes;
                se := NULL; d_bytes := 0;
            END IF;

        ELSIF r.kind = 5 THEN -- release
            UPDATE {ns}.session SET released = now_ms WHERE id = se.id;

        ELSIF r.kind = 6 THEN -- hold; with n it may take the session over from the epoch a, b, or from an older number; with retry there is a record
            is_new := se.id IS NULL;
            verdict := CASE
                WHEN is_new THEN (r.n > 0 OR r.retry IS NULL
                    OR EXISTS (SELECT FROM {ns}.ended WHERE name = r.name AND at > oldest))::integer
                WHEN (se.epoch, se.salt) = (r.epoch, r.salt) OR (r.n > 0 AND ((se.epoch, se.salt) = (r.a, r.b) OR se.epoch < r.a)) THEN 0
                ELSE 2 END;
            IF verdict = 0 THEN
                IF r.retry IS NOT NULL THEN
                    se.revision := r.revision; se.principal := r.body; se.retry_ms := r.retry; se.lists := r.c;
                    se.standalone := r.nonce; se.note := r.about;
                END IF;
                IF (se.epoch, se.salt) <> (r.epoch, r.salt) THEN
                    d_bytes := d_bytes - {ns}.forget_taken(se.id, NULL);
                END IF;
                -- Told by the commit itself: an heir that ends before it has told would leave an owner that never learns of it.
                -- It is rare enough for the lock of that.
                IF se.owner <> me AND se.released IS NULL THEN
                    PERFORM {ns}.notify(se.owner, left(encode(sha256(r.name), 'hex'), 32));
                END IF;
                INSERT INTO {ns}.session AS x (name, owner, epoch, salt, revision, principal, retry_ms, lists, standalone,
                    note)
                VALUES (r.name, me, r.epoch, r.salt, se.revision, se.principal, se.retry_ms, se.lists, se.standalone,
                    se.note)
                ON CONFLICT (name) DO UPDATE SET
                    owner = me, epoch = r.epoch, salt = r.salt, released = NULL, revision = excluded.revision,
                    principal = excluded.principal, retry_ms = excluded.retry_ms, lists = excluded.lists,
                    standalone = excluded.standalone, note = excluded.note
                WHERE x.id = se.id RETURNING * INTO se;
                IF NOT FOUND THEN
                    RAISE EXCEPTION 'somebody else began the session meanwhile' USING ERRCODE = '40001';
                END IF;
                n_sessions := n_sessions + is_new::integer;
                IF r.n > 0 THEN
                    RETURN QUERY SELECT * FROM {ns}.running(r.write::integer, se.id);
                END IF;
            END IF;

        ELSIF r.kind = 7 THEN -- attach: of so many readers (epoch); a message's log begins with a chain (salt)
            is_there := array_position(principals[r.at : r.at + r.n - 1], se.principal) IS NOT NULL AND se.id IS NOT NULL;
            IF is_there AND r.body IS NOT NULL
                AND NOT EXISTS (SELECT FROM {ns}.stream WHERE session = se.id AND nonce = r.nonce)
            THEN
                SELECT * INTO t FROM {ns}.post(se.id, r.nonce, r.about, r.body, r.salt, now_ms, bounds);
                verdict := t.verdict; d_bytes := d_bytes + t.bytes; n_streams := n_streams + (verdict = 0)::integer;
            END IF;
            IF verdict = 0 THEN
                UPDATE {ns}.stream AS x SET readers = readers + r.epoch, followers = CASE
                    WHEN se.owner = me AND se.released IS NULL THEN followers
                    ELSE (me || array_remove(followers, me))[1:8] END
                WHERE is_there AND session = se.id AND nonce = r.nonce AND head >= r.a
                    AND coalesce(r.retry = {ns}.tag_at(x, r.a), true)
                RETURNING se.owner || followers INTO told;
                -- Also where an earlier try left it: its answer was lost, and nobody is told.
                IF is_there AND r.body IS NOT NULL AND se.owner <> me AND EXISTS (
                    SELECT FROM {ns}.stream AS x JOIN {ns}.message AS m ON m.session = se.id AND m.stream = x.id
                    WHERE x.session = se.id AND x.nonce = r.nonce AND NOT m.is_taken)
                THEN
                    told := array_remove(told, se.owner);
                    done.hearers := done.hearers || se.owner; done.tags := done.tags || -r.write::integer;
                END IF;
                RETURN QUERY SELECT * FROM {ns}.look(r.write::integer, me, r.name, r.nonce,
                    principals[r.at : r.at + r.n - 1], r.a, r.b, r.c, r.size);
            END IF;

        ELSIF r.kind = 8 THEN -- withdraw
            IF st.kept_until IS NULL THEN
                freed := {ns}.forget_waiting(se.id, st.id);
                IF freed > 0 THEN
                    added_bytes := octet_length(r.tail);
                    INSERT INTO {ns}.event VALUES (st.id, -1, now_ms, 0, 0, true, r.tail);
                    UPDATE {ns}.stream SET kept_until = now_ms + bounds[10], is_withdrawn = true, bytes = bytes + added_bytes
                    WHERE id = st.id RETURNING * INTO st;
                    touched := touched || st.id; d_bytes := d_bytes + added_bytes - freed;
                END IF;
            END IF;
            verdict := CASE WHEN st.id IS NULL THEN 1 WHEN st.is_withdrawn THEN 0 ELSE 7 END;
            IF verdict = 0 THEN told := st.followers; END IF;

        ELSE -- take, and forget those up to a
            d_bytes := d_bytes - {ns}.forget_taken(se.id, r.a);
            -- Nobody waits for a message without a log, and it would stay before the others. It is told without a name.
            FOR t IN
                DELETE FROM {ns}.message AS m WHERE m.session = se.id AND NOT EXISTS (
                    SELECT FROM {ns}.stream AS x WHERE x.id = m.stream AND x.session = se.id AND octet_length(x.nonce) = 12)
                RETURNING m.bytes
            LOOP
                d_bytes := d_bytes - t.bytes;
                lost.write := r.write;
                RETURN NEXT lost;
            END LOOP;
            RETURN QUERY SELECT * FROM {ns}.take(r.write::integer, se.id, bounds[9]);
        END IF;
        done.kinds := done.kinds || verdict;
        IF told IS NOT NULL THEN
            told := array_remove(told, me);
            done.hearers := done.hearers || told;
            done.tags := done.tags || array_fill(r.write::integer, ARRAY[cardinality(told)]);
        END IF;
    END LOOP;
    SELECT * INTO STRICT t FROM {ns}.count(me, my_lane, n_sessions, n_streams, n_events, n_bytes);
    done.seqs := ARRAY[t.sessions, t.streams, t.events, t.bytes, n_trimmed];
    RETURN NEXT done;
END $$;
