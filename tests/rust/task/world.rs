//! A call that may become a task, with its store, its SDK and its clients, over a random schedule.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde_json::Value;
use tailrope_core::Ms;
use tailrope_core::protocol::RequestId;
use tailrope_core::task::{
    Call, Change, End, Input, Machine, Now, Output, Reply, Response, Settings, Status, TASK_ID_BYTES, Task, TaskId,
    What, detailed,
};

use crate::kit::dice::Dice;

const UNIX_MS: u64 = 1_795_832_278_000;
const CALL: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow","_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{},"roots":{}}},"inputResponses":{"old":{}}}}"#;

/// What the model knows of a call. Every input and output passes through [`World::input`].
pub(crate) struct World {
    dice: Dice,
    now: u64,
    machine: Machine,
    /// Every change that was to be stored, and how many of them are.
    changes: Vec<Change>,
    stored: usize,
    /// The run whose answer the SDK owes, and what was started.
    run: Option<u32>,
    started: Vec<u32>,
    disconnected: HashSet<u32>,
    /// Questions of the handler that wait.
    asking: HashSet<u64>,
    asked: u64,
    /// Updates and cancellations that wait, with how much was to be stored when they came.
    waiting: HashMap<u64, usize>,
    requests: u64,
    /// Requests by their keys, for ever.
    keys: HashMap<String, Bytes>,
    replied: bool,
    is_stream: bool,
    is_task: bool,
    is_client_gone: bool,
    is_fenced: bool,
    pub(crate) inputs: u64,
    pub(crate) ends: HashMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(mut dice: Dice) -> Self {
        let settings = Settings {
            after_ms: [0, 100, 1_000, 30_000][dice.place(4)],
            limit_ms: [None, Some(60_000)][dice.place(2)],
            retention_ms: 5_000,
            max_record_bytes: 4 << 10,
            max_records: 4_000,
            max_log_bytes: 16 << 20,
            takes_streams: dice.below(4) > 0,
        };
        let now = Now { at: Ms(0), unix_ms: UNIX_MS };
        let call = Call::read(CALL.as_bytes()).unwrap();
        let machine = Machine::new(now, settings, TaskId::new(&[1; TASK_ID_BYTES]), call);
        Self {
            dice,
            now: 0,
            machine,
            changes: Vec::new(),
            stored: 0,
            run: Some(0),
            started: vec![0],
            disconnected: HashSet::new(),
            asking: HashSet::new(),
            asked: 0,
            waiting: HashMap::new(),
            requests: 0,
            keys: HashMap::new(),
            replied: false,
            is_stream: false,
            is_task: false,
            is_client_gone: false,
            is_fenced: false,
            inputs: 0,
            ends: HashMap::new(),
        }
    }

    /// Whether the schedule has come to the end of its choices.
    #[allow(dead_code, reason = "a schedule of a seed has a length instead")]
    pub(crate) fn is_used_up(&self) -> bool {
        self.dice.is_used_up()
    }

    /// Something happens.
    pub(crate) fn step(&mut self) {
        self.now += [0, 1, 40, 250, 900, 15_000][self.dice.place(6)] * self.dice.below(2);
        match self.dice.below(16) {
            0 | 1 => self.progress(),
            2 => self.message(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}"#.to_owned()),
            3 => self.answer(),
            4 => self.question(),
            5 => self.withdraw(),
            6 | 7 => self.update(),
            8 if self.dice.one_in(3) => self.cancel(),
            9 if self.dice.one_in(3) => self.client_gone(),
            10 if self.dice.one_in(8) => self.unstored(),
            11 if self.dice.one_in(20) => self.fenced(),
            12 | 13 => self.stored(),
            _ => self.tick(),
        }
    }

    /// The schedule is over, and nothing fails any more: everything comes to its end.
    pub(crate) fn settle(&mut self) {
        for _ in 0..400 {
            if self.machine.is_over() {
                break;
            }
            self.stored();
            if let Some(run) = self.run {
                let result = r#"{"jsonrpc":"2.0","id":2,"result":{"content":[]}}"#;
                let message = Bytes::from_static(result.as_bytes());
                self.input(Input::Message { run, message, is_body: false });
            }
            for run in self.started.clone() {
                self.input(Input::RunEnded { run });
            }
            self.answer_all();
            self.now += 1_000;
            self.tick();
        }
        assert!(self.machine.is_over(), "it comes to its end");
        assert!(self.waiting.is_empty(), "every request has its answer: {:?}", self.waiting);
        assert!(self.asking.is_empty() || self.is_done(), "every question that could be answered was");
        assert!(self.replied || self.is_client_gone, "the call has its answer");
        assert_eq!(self.machine.deadline(), Ms::NEVER);
    }

    fn is_done(&self) -> bool {
        self.is_fenced || self.machine.task().is_none_or(|task| task.end().is_some())
    }

    fn any_run(&mut self) -> u32 {
        match self.run {
            Some(run) if self.dice.below(8) > 0 => run,
            _ => self.started[self.dice.place(self.started.len())],
        }
    }

    fn message(&mut self, message: String) {
        let run = self.any_run();
        self.input(Input::Message { run, message: message.into(), is_body: false });
    }

    fn progress(&mut self) {
        let token = ["tailrope-progress", "other"][self.dice.place(2)];
        let number = self.dice.below(9);
        let params = format!(r#"{{"progressToken":"{token}","progress":{number},"total":9}}"#);
        self.message(format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#));
    }

    fn answer(&mut self) {
        let run = self.any_run();
        let long = "x".repeat(5 << 10);
        let text = match self.dice.below(10) {
            0 => r#""error":{"code":-32602,"message":"no"}"#.to_owned(),
            1 | 2 => r#""result":{"content":[],"isError":true}"#.to_owned(),
            3 => format!(r#""result":{{"content":"{long}"}}"#),
            4 => r#""result":{"resultType":"input_required","requestState":"s"}"#.to_owned(),
            5 => r#""result":{"resultType":"input_required"}"#.to_owned(),
            6 => {
                self.input(Input::NotJsonRpc { run, status: 401 });
                return self.run_done(run);
            }
            7 => {
                self.input(Input::RunEnded { run });
                return self.run_done(run);
            }
            _ => {
                let most = if self.dice.one_in(4) { 20 } else { 2 };
                let count = 1 + self.dice.below(most);
                let asked: Vec<String> = (0..count)
                    .map(|n| format!(r#""q{n}":{{"method":"elicitation/create","params":{{"at":{}}}}}"#, self.inputs))
                    .collect();
                format!(
                    r#""result":{{"resultType":"input_required","inputRequests":{{{}}},"requestState":1}}"#,
                    asked.join(",")
                )
            }
        };
        let (message, is_body) = (format!(r#"{{"jsonrpc":"2.0","id":2,{text}}}"#), self.dice.one_in(2));
        self.input(Input::Message { run, message: message.into(), is_body });
        self.run_done(run);
    }

    fn run_done(&mut self, run: u32) {
        self.run = self.run.filter(|current| *current != run);
    }

    fn question(&mut self) {
        self.asked += 1;
        self.asking.insert(self.asked);
        let request = r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{"message":"?"}}"#;
        self.input(Input::Question { ask: self.asked, request: Bytes::from_static(request.as_bytes()) });
    }

    fn withdraw(&mut self) {
        let Some(ask) = self.asking.iter().min().copied() else { return };
        self.asking.remove(&ask);
        self.input(Input::Withdrawn { ask });
    }

    fn request(&mut self) -> u64 {
        self.requests += 1;
        self.waiting.insert(self.requests, self.changes.len());
        self.requests
    }

    fn update(&mut self) {
        let mut keys: Vec<String> = self.keys.keys().cloned().collect();
        keys.sort();
        keys.push("unknown".to_owned());
        let responses = keys.into_iter().filter(|_| self.dice.below(2) > 0);
        let responses: Vec<Response> = responses
            .map(|key| Response { key: key.into(), value: Bytes::from_static(b"{\"action\":\"accept\"}") })
            .collect();
        self.send_update(responses);
    }

    fn answer_all(&mut self) {
        let responses = self.keys.keys().map(|key| Response { key: (&**key).into(), value: Bytes::from_static(b"{}") });
        let responses = responses.collect();
        self.send_update(responses);
    }

    /// Nobody has the handle of a task that is not stored.
    fn send_update(&mut self, responses: Vec<Response>) {
        if self.machine.stored().is_some() {
            let from = self.request();
            self.input(Input::Update { from, responses });
        }
    }

    fn cancel(&mut self) {
        if self.machine.stored().is_some() {
            let from = self.request();
            self.input(Input::Cancel { from });
        }
    }

    fn client_gone(&mut self) {
        self.is_client_gone = true;
        self.input(Input::ClientGone);
    }

    fn stored(&mut self) {
        if self.stored < self.changes.len() {
            let count = 1 + self.dice.below((self.changes.len() - self.stored) as u64);
            self.stored += usize::try_from(count).unwrap();
            self.input(Input::Stored { number: self.stored as u64 - 1 });
        }
    }

    fn unstored(&mut self) {
        if self.stored < self.changes.len() {
            let from = self.stored;
            self.changes.truncate(from);
            self.waiting.values_mut().for_each(|count| *count = (*count).min(from));
            self.input(Input::Unstored { number: from as u64 });
        }
    }

    fn fenced(&mut self) {
        self.is_fenced |= self.machine.task().is_some();
        self.changes.truncate(self.stored);
        self.waiting.values_mut().for_each(|count| *count = (*count).min(self.stored));
        self.input(Input::Fenced);
    }

    fn tick(&mut self) {
        self.input(Input::Tick);
        assert!(self.machine.deadline() > Ms(self.now), "what is due was done");
    }

    fn input(&mut self, input: Input) {
        self.inputs += 1;
        let before = self.machine.stored().cloned();
        let mut out = Vec::new();
        self.machine.handle(Now { at: Ms(self.now), unix_ms: UNIX_MS + self.now / 2 }, input, &mut out);
        for output in out {
            self.output(output);
        }
        self.check(before.as_ref());
    }

    fn output(&mut self, output: Output) {
        match output {
            Output::Store { number, change } => {
                assert_eq!(number, self.changes.len() as u64, "changes are numbered in order");
                let record = change.encode();
                assert_eq!(Change::decode(&record).as_ref(), Some(&change), "T-16: it reads back");
                self.changes.push(change);
            }
            Output::Changed => assert!(self.stored > 0),
            Output::Unlink => self.is_task = true,
            Output::Reply(reply) => self.reply(&reply),
            Output::PassOn => self.finish(),
            Output::Disconnect { run } => {
                assert!(self.disconnected.insert(run), "once");
                self.run_done(run);
            }
            Output::Kill { run } => assert!(self.disconnected.contains(&run), "the disconnect comes first"),
            Output::Start { run, call, .. } => {
                assert_eq!(self.run, None, "one run at a time");
                assert!(!self.started.contains(&run), "T-20: a round starts once");
                assert!(
                    self.machine.task().is_some_and(|task| task.end().is_none()),
                    "T-22: none starts after the end"
                );
                let call: Value = serde_json::from_slice(&call).unwrap();
                assert!(
                    call["params"]["inputResponses"].get("old").is_none(),
                    "answers before the task are not repeated"
                );
                self.started.push(run);
                self.run = Some(run);
            }
            Output::Answer { ask, .. } | Output::Refuse { ask } => {
                // A handler may have given up meanwhile.
                self.asking.remove(&ask);
            }
            Output::Acknowledge { from } => {
                let count = self.waiting.remove(&from).expect("once");
                assert!(self.stored >= count, "T-21: what it changed is stored");
            }
            Output::NotTaken { from } | Output::TooLarge { from } => {
                self.waiting.remove(&from).expect("once");
            }
        }
    }

    fn reply(&mut self, reply: &Reply) {
        assert!(!self.replied, "nothing follows an answer");
        match reply {
            Reply::Body { body, .. } => {
                assert!(!self.is_stream);
                self.check_response(body);
                self.finish();
            }
            Reply::Begin => {
                assert!(!self.is_stream, "it begins once");
                self.is_stream = true;
            }
            Reply::Event(message) => {
                assert!(self.is_stream);
                assert!(!message.windows(17).any(|part| part == b"tailrope-progress"), "ours is not for the client");
                self.check_response(message);
            }
            Reply::Comment => assert!(self.is_stream),
            Reply::End => {
                assert!(self.is_stream);
                self.finish();
            }
        }
    }

    fn check_response(&self, message: &[u8]) {
        let message: Value = serde_json::from_slice(message).unwrap();
        if message["result"]["resultType"] == "task" {
            assert!(self.stored > 0 && self.is_task, "T-16: the task is stored before its handle goes out");
        }
    }

    fn finish(&mut self) {
        assert!(!self.replied, "one answer");
        self.replied = true;
    }

    /// What holds after every input.
    fn check(&mut self, before: Option<&Task>) {
        let Some(task) = self.machine.task() else { return };
        let stored = self.machine.stored().unwrap();
        let folded = Task::fold(&self.changes).unwrap();
        assert_eq!(Some(task), folded.as_ref(), "the task is what its log makes");
        assert_eq!(Some(stored), Task::fold(&self.changes[..self.stored]).unwrap().as_ref());
        assert!(self.changes.windows(2).all(|pair| pair[0].at < pair[1].at), "T-11: its time rises with every change");
        let created = self.changes.iter().filter(|change| matches!(change.what, What::Created { .. })).count();
        assert_eq!(created, 1);
        if let Some(before) = before.filter(|task| task.end().is_some()) {
            assert_eq!(before, stored, "T-15: a task that has its end stays as it is");
        }
        if let Some(end) = stored.end() {
            let end = match end {
                End::Completed(_) => "completed",
                End::Failed(_) => "failed",
                End::Cancelled => "cancelled",
            };
            self.ends.entry(end).or_insert(1);
            assert!(task.questions().shown().is_empty());
        }
        assert_eq!(stored.status() == Status::InputRequired, !stored.questions().shown().is_empty());
        assert!(stored.questions().shown().len() <= 16, "as many as clients take");
        for question in stored.questions().shown() {
            assert!(question.key.bytes().all(|byte| byte.is_ascii_graphic()));
            let known = self.keys.entry(question.key.to_string()).or_insert_with(|| question.request.clone());
            assert_eq!(*known, question.request, "T-20: a key is for one question");
        }
        let view = detailed(&RequestId::integer(1), self.machine.id(), stored, UNIX_MS + self.now);
        let view: Value = serde_json::from_slice(&view).unwrap();
        let view = &view["result"];
        assert_eq!(view["inputRequests"].is_object(), stored.status() == Status::InputRequired, "T-12: {view}");
        assert_eq!(view["result"].is_object(), stored.status() == Status::Completed);
        assert_eq!(view["error"].is_object(), stored.status() == Status::Failed);
        assert!((250..=30_000).contains(&view["pollIntervalMs"].as_u64().unwrap()), "what clients take");
    }
}
