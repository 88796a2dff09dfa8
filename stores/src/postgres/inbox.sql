-- Messages for the owners of sessions. The row of the session is locked before anything here.

-- Leaves a message, and the log of its answer, which is not there; what both add. The verdicts and the bounds are those of
-- `apply`.
CREATE FUNCTION {ns}.post(
    session_id bigint, stream_nonce bytea, about bytea, body bytea, chain bigint, now_ms bigint, bounds bigint[],
    OUT verdict smallint, OUT bytes bigint
) LANGUAGE plpgsql AS $$
DECLARE
    log_bytes bigint := bounds[6] + octet_length(about);
    message_bytes bigint := octet_length(about) + octet_length(body);
    waiting record;
    stream_id bigint;
BEGIN
    bytes := 0;
    SELECT count(*) AS messages, coalesce(sum(m.bytes), 0) AS bytes INTO waiting
    FROM {ns}.message AS m WHERE session = session_id AND NOT is_taken;
    verdict := CASE
        WHEN waiting.messages >= bounds[7] THEN 5
        WHEN waiting.messages > 0 AND waiting.bytes + message_bytes > bounds[8] THEN 6
        ELSE 0 END;
    IF verdict <> 0 THEN RETURN; END IF;
    INSERT INTO {ns}.stream (session, nonce, head, low, low_tag, low_at, chain, events, bytes)
    VALUES (session_id, stream_nonce, 0, 1, chain::bit(32)::integer, now_ms, chain, 0, log_bytes)
    RETURNING id INTO stream_id;
    IF about <> '' THEN
        INSERT INTO {ns}.event VALUES (stream_id, 0, now_ms, 0, 0, true, about);
    END IF;
    INSERT INTO {ns}.message (session, stream, bytes, body) VALUES (session_id, stream_id, message_bytes, body);
    bytes := log_bytes + message_bytes;
END $$;

-- Forgets messages that the owner has, up to a number or all. Returns their bytes.
CREATE FUNCTION {ns}.forget_taken(session_id bigint, number bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    freed bigint;
BEGIN
    WITH gone AS (
        DELETE FROM {ns}.message WHERE session = session_id AND is_taken AND (number IS NULL OR stream <= number)
        RETURNING bytes
    )
    SELECT coalesce(sum(bytes), 0) INTO freed FROM gone;
    RETURN freed;
END $$;

-- Forgets the message that a log is the answer of, if that waits. Returns its bytes, of which it has some.
CREATE FUNCTION {ns}.forget_waiting(session_id bigint, stream_id bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    freed bigint;
BEGIN
    DELETE FROM {ns}.message WHERE session = session_id AND stream = stream_id AND NOT is_taken RETURNING bytes INTO freed;
    RETURN coalesce(freed, 0);
END $$;

-- The owner has the first messages from now on. Those that it had already are before all that wait.
CREATE FUNCTION {ns}.take(write integer, session_id bigint, at_most bigint) RETURNS SETOF {ns}.found LANGUAGE plpgsql AS $$
DECLARE
    f {ns}.found;
BEGIN
    UPDATE {ns}.message AS m SET is_taken = true
    FROM (SELECT stream FROM {ns}.message WHERE session = session_id ORDER BY stream LIMIT at_most) AS of
    WHERE m.session = session_id AND m.stream = of.stream AND NOT m.is_taken;
    f.write := write;
    FOR f.number, f.nonce, f.about, f.body IN
        SELECT m.stream, st.nonce, e.frame, m.body FROM {ns}.message AS m JOIN {ns}.stream AS st ON st.id = m.stream
        LEFT JOIN {ns}.event AS e ON e.stream = m.stream AND e.seq = 0
        WHERE m.session = session_id AND m.is_taken ORDER BY m.stream LIMIT at_most
    LOOP
        RETURN NEXT f;
    END LOOP;
END $$;
