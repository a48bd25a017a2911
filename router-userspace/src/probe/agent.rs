//! Asks the agents of instances how they are: connect, read one line, understand its words.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::jitter::random_numbers;
use super::log::{self, Name};
use super::origin::Origin;
use super::tasks::Target;
use crate::core::agent::{AgentReport, AgentSpec, MAX_LINE};
use crate::core::health::{Failure, Observation, first_turn, next_turn};
use crate::core::load::{LoadPolicy, Thresholds};
use crate::core::status::{Changes, InstanceStatus};

/// Questions in a row that may stay unanswered where an answer is required.
const PATIENCE: u32 = 3;

/// An agent that is asked.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    pub name: Name,
    /// The instance's.
    pub address: SocketAddr,
    pub spec: AgentSpec,
    pub policy: LoadPolicy,
    pub thresholds: Thresholds,
    pub status: Arc<InstanceStatus>,
}

impl Target for Agent {
    fn name(&self) -> &Name {
        &self.name
    }

    fn is_same(&self, other: &Agent) -> bool {
        self.address == other.address
            && self.spec == other.spec
            && self.policy == other.policy
            && self.thresholds == other.thresholds
            && Arc::ptr_eq(&self.status, &other.status)
    }
}

/// Asks one agent for ever.
pub(super) async fn run(agent: Agent, origin: Arc<Origin>) {
    let mut random = random_numbers();
    let mut unanswered = 0;
    sleep(first_turn(agent.spec.interval, random())).await;
    loop {
        let started = Instant::now();
        match ask(&agent, &origin).await {
            Some(line) => {
                unanswered = 0;
                understand(&agent, &line);
            }
            None => {
                unanswered += 1;
                miss(&agent, unanswered);
            }
        }
        sleep_until(started + next_turn(agent.spec.interval, random())).await;
    }
}

/// What the agent says; `None` if it does not answer in time.
async fn ask(agent: &Agent, origin: &Origin) -> Option<Vec<u8>> {
    let address = SocketAddr::new(agent.address.ip(), agent.spec.port);
    let mut line = Vec::new();
    let conversation = async {
        let mut stream = origin.bind(address)?.connect(address).await?;
        // Closing first would leave a TIME_WAIT of a minute behind each question.
        let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        stream.write_all(&agent.spec.send).await?;
        while line.len() < MAX_LINE && !line.contains(&b'\n') {
            let mut bytes = [0; MAX_LINE];
            match stream.read(&mut bytes).await? {
                0 => break,
                length => line.extend_from_slice(&bytes[..length]),
            }
        }
        Ok::<_, std::io::Error>(())
    };
    let answered = timeout_at(Instant::now() + agent.spec.timeout, conversation).await;
    // A line without its end is an answer if the agent closes after it, or resets; not if it is still being written.
    let whole = line.contains(&b'\n') || answered.is_ok();
    (whole && !line.is_empty()).then_some(line)
}

fn understand(agent: &Agent, line: &[u8]) {
    let said = AgentReport::parse(line);
    let Name { pool, instance } = &agent.name;
    if said.ignored > 0 {
        let line = String::from_utf8_lossy(line);
        debug!(%pool, %instance, line = line.trim_end(), "an agent said words that mean nothing");
    }
    let now = Instant::now().into_std();
    let status = &agent.status;
    let mut changes = Changes::default();
    if said.up.is_none() {
        changes.reachability = status.agent_answered(now);
    }
    let admin = status.admin();
    let more = status.agent(&said, &agent.policy, &agent.thresholds, now);
    changes = Changes { reachability: more.reachability.or(changes.reachability), ..more };
    log::changes(&agent.name, agent.address, changes);
    if status.admin() != admin {
        let (state, text) = (status.admin().name(), &said.text);
        tracing::info!(%pool, %instance, state, %text, "the agent changed the admin state");
    }
}

fn miss(agent: &Agent, unanswered: u32) {
    let Name { pool, instance } = &agent.name;
    if unanswered == 1 {
        debug!(%pool, %instance, port = agent.spec.port, "an agent does not answer");
    }
    if unanswered != PATIENCE {
        return;
    }
    if !agent.spec.require_response {
        warn!(%pool, %instance, port = agent.spec.port, "the agent of this instance does not answer");
        return;
    }
    let seen = Observation::AgentDown(Failure::AgentSilent);
    let reachability = agent.status.observe(None, seen, Instant::now().into_std());
    log::changes(&agent.name, agent.address, Changes { reachability, load: None });
}
