//! Composition root: the one place where everything meets; nothing uses it.
//!
//! [`run`] reads top to bottom: validate, open, start, wait, end. Nothing is opened before the whole configuration is
//! known to be valid, and nobody is served before everything is open.

mod arguments;
mod balance;
mod configuration;
mod control;
mod datapath;
mod exemption;
mod heads;
mod listeners;
mod log;
mod remembered;
pub mod reports;
mod transparent;

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use arc_swap::ArcSwap;
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

pub use arguments::{Arguments, LogFormat};

use balance::Balance;
use configuration::{Configuration, Parts};
use exemption::Exemption;
use heads::Heads;

use crate::config::{self, ConfigErrors, Plan, Problems, Running, running::Started};
use crate::control::reports::Tokens;
use crate::core::counters::Counters;
use crate::core::preload::Planner;
use crate::core::table::RoutingTable;
use crate::flows::ports::{KernelReservation, SourcePorts, reserve_in_kernel};
use crate::flows::table::FlowTable;
use crate::probe::{Origin, Prober, preload, watch};
use crate::proxy::budget::{BudgetLimits, HeadBudget};
use crate::proxy::decision_log;
use crate::proxy::listener::{self, Workers};
use crate::proxy::settings::{Context, Listener};
use crate::proxy::source::SourceAddresses;
use crate::surroundings::{self, Warning};

/// Open files that a busy gateway needs: two for each relayed connection.
const WANTED_FILES: u64 = 1 << 20;
/// How long clients wait in the backlog for the first checks, rather than being told 503.
const FIRST_CHECKS: Duration = Duration::from_secs(2);

/// `routerd`: from the command line to the exit status.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(error) = log::start(&arguments) {
        eprintln!("routerd: --log {:?} is not understood: {error}", arguments.log);
        return ExitCode::from(2);
    }
    if arguments.check {
        let Some(plan) = shown(config::load(&arguments.config)) else { return ExitCode::FAILURE };
        for Warning { message, help } in surroundings::warnings(&plan) {
            eprintln!("  warning: {message}\n  help: {help}");
        }
        println!("{} is valid", arguments.config.display());
        return ExitCode::SUCCESS;
    }
    let Some(started) = shown(config::Running::start(&arguments.config)) else { return ExitCode::FAILURE };
    match run(&arguments, started) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The configuration, if it is valid as a whole. Shows every problem.
fn shown<T>(configuration: Result<T, ConfigErrors>) -> Option<T> {
    configuration.map_err(|errors| show(&errors)).ok()
}

fn show(problems: &Problems) {
    let color = std::io::IsTerminal::is_terminal(&std::io::stderr());
    eprint!("{}", problems.graphical(color));
}

/// Runs the daemon until it is told to end.
fn run(arguments: &Arguments, started: Started) -> Result<()> {
    allow_many_files();

    let Started { running, plan, damage } = started;
    tell_of_changes(&running, damage);
    for Warning { message, help } in surroundings::warnings(&plan) {
        tracing::warn!(help, "{message}");
    }
    let Plan { daemon, datapath, listeners, table, reports, warnings, .. } = plan;
    if !warnings.is_empty() {
        show(&warnings);
    }
    // First of all: two daemons would share the listeners' ports without noticing.
    let control = control::open(&daemon)?;
    let workers = usize::from(daemon.workers);
    let opened = listeners
        .iter()
        .filter(|listener| !listener.protocol.is_layer4())
        .map(|listener| {
            let settings = listeners::settings(listener);
            let sockets = listener::open(&settings, workers)?;
            Ok((settings, sockets))
        })
        .collect::<Result<Vec<_>>>()?;

    let table = Arc::new(ArcSwap::from_pointee(table));
    let counters = Arc::new(Counters::default());
    let source_ports = SourcePorts::new(datapath.source_ports.clone(), datapath::binds(&listeners));
    let datapath::Loaded { flows: kernel, binder, rings, balancer, tracer, captures, state: datapath_state } =
        datapath::load(&datapath, &listeners, &table, &source_ports, workers, arguments.replace);
    let ports = source_ports.sockets;
    let flows = kernel.clone().map(|flows| flows as Arc<dyn FlowTable>);
    let exemption = flows.as_ref().map(|_| Arc::new(Exemption::prepare(&datapath)));
    if let Some(exemption) = &exemption {
        exemption.install(&listeners, &table.load());
        reserve_ports(&datapath.source_ports);
        reserve_ports(&datapath.balance.source_ports);
    }
    let balance = Balance::new(balancer.clone(), Arc::clone(&table), &datapath);
    if balance.is_needed(&listeners) && balancer.is_none() {
        bail!("Layer-4 listeners (tcp, udp) need the kernel data path: {datapath_state}");
    }
    transparent::prepare(&listeners, kernel.is_some())?;
    let claimed = balance.claim(&listeners)?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let origin = Origin {
        addresses: datapath.source_addresses.clone(),
        flow_ports: vec![datapath.source_ports.clone(), datapath.balance.source_ports.clone()],
    };
    let prober = Arc::new(Prober::new(runtime.handle().clone(), origin.clone()));
    prober.install(&table.load());
    let sessions_file = remembered::file(&daemon.state_dir);
    remembered::restore(&table.load(), &sessions_file);
    runtime.spawn(watch(Arc::clone(&table)));
    runtime.spawn(remembered::keep(Arc::clone(&table), sessions_file.clone()));
    runtime.block_on(first_checks(&table.load()));
    balance.replace(&listeners, claimed).context("the Layer-4 listeners cannot be put in force")?;
    let balance = Arc::new(balance);
    runtime.spawn(balance::keep(Arc::clone(&balance)));
    let preloads = Arc::new(Mutex::new(Planner::default()));
    let preloading = runtime.spawn(preload(Arc::clone(&preloads), Arc::clone(&table), origin));

    let context = Arc::new(Context {
        table: Arc::clone(&table),
        flows: flows.clone(),
        binder: binder.clone(),
        ports: Arc::clone(&ports),
        bound_ports: source_ports.bound,
        sources: SourceAddresses::new(datapath.source_addresses.clone()),
        counters: Arc::clone(&counters),
        heads: HeadBudget::new(BudgetLimits::default()),
        decision_log: decision_log::Sampler::default(),
    });
    let serving = opened
        .into_iter()
        .map(|(settings, sockets)| {
            tracing::info!(listener = settings.name, address = %settings.address, "listening");
            (Arc::new(Listener { context: Arc::clone(&context), settings }), sockets)
        })
        .collect();
    let workers =
        Arc::new(Workers::start(workers, serving, (binder, rings)).context("cannot start the workers")?);
    let heads = Arc::new(Heads::of(&listeners));
    let shown_listeners = Arc::new(ArcSwap::from_pointee(listeners.iter().map(Into::into).collect()));
    let (reports_listen, tokens) =
        reports.map_or_else(Default::default, |plan| (Some(plan.listen), plan.tokens));
    let tokens = Arc::new(Tokens::new(tokens));
    let parts = Parts {
        table: Arc::clone(&table),
        tokens: Arc::clone(&tokens),
        prober,
        preloads: Arc::clone(&preloads),
        workers: Arc::clone(&workers),
        context,
        heads: Arc::clone(&heads),
        balance,
        kernel,
        listeners: Arc::clone(&shown_listeners),
        exemption: exemption.clone(),
    };
    let configuration = Arc::new(Configuration::new(parts, running, listeners));
    runtime.spawn(reports::end_leases(Arc::clone(&configuration)));
    if let Some(exemption) = &exemption {
        runtime.spawn(exemption::watch(Arc::clone(exemption), Arc::clone(&configuration)));
    }
    let reports = reports_listen
        .map(|listen| {
            let registry: Arc<dyn reports::Registry> = Arc::<Configuration>::clone(&configuration);
            reports::serve(listen, tokens, Arc::clone(&table), registry, Arc::clone(&counters))
        })
        .transpose()?;
    let live = control::Live {
        table: Arc::clone(&table),
        counters,
        flows: flows.clone(),
        balancer,
        tracer,
        captures,
        ports,
        datapath: datapath_state,
        heads,
        listeners: shown_listeners,
        configuration: Arc::clone(&configuration),
        preloads,
    };
    let control = control::serve(control, &arguments.config, live)?;
    notify(&[NotifyState::Ready]);

    runtime.block_on(wait_for_the_end(&configuration))?;
    notify(&[NotifyState::Stopping]);
    drop(reports);
    configuration.close();
    preloading.abort();
    end(&runtime, workers, arguments.stop_timeout)?;
    remembered::save_and_log(&table.load(), &sessions_file);
    if let (Some(exemption), Some(flows)) = (&exemption, &flows) {
        exemption.end(&**flows);
    }
    if flows.as_ref().is_some_and(|flows| flows.is_empty()) {
        transparent::end();
    }
    // Does not wait for workers that a second signal has given up on.
    runtime.shutdown_background();
    drop(control);
    Ok(())
}

/// Raises the limit of open files as far as the host allows.
fn allow_many_files() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let wanted = WANTED_FILES.max(hard);
    // Only root may raise the hard limit; everybody may go up to it.
    let raised = [(wanted, wanted), (hard, hard)]
        .into_iter()
        .find(|(soft, hard)| setrlimit(Resource::RLIMIT_NOFILE, *soft, *hard).is_ok());
    let files = raised.map_or(soft, |(soft, _)| soft);
    if files < 65_536 {
        tracing::warn!(
            files,
            "few connections can be open at a time: raise the limit of open files (LimitNOFILE= in the unit)"
        );
    }
}

/// Keeps the kernel from using the router's ports for other connections.
fn reserve_ports(ports: &RangeInclusive<u16>) {
    match reserve_in_kernel(ports) {
        KernelReservation::NotNeeded => {}
        KernelReservation::Added => {
            tracing::info!(?ports, "source ports added to ip_local_reserved_ports");
        }
        KernelReservation::Failed { wanted, error } => tracing::warn!(
            %error,
            "other programs of this host may take the router's source ports; set: sysctl -w net.ipv4.ip_local_reserved_ports={wanted}"
        ),
    }
}

/// What an operator may have forgotten: changes that are in no file.
fn tell_of_changes(running: &Running, damage: Option<String>) {
    if let Some(damage) = damage {
        tracing::error!("{damage}");
    }
    let changes = running.changes();
    if !changes.is_empty() {
        tracing::info!(changes = changes.len(), "with run-time changes; `routerctl changes` lists them");
    }
    for entry in changes {
        if let Some(obstacle) = &entry.obstacle {
            tracing::warn!("run-time change {} is not in force ({}): {obstacle}", entry.id, entry.change);
        }
    }
}

/// Waits until every instance that has a check has been checked once, for a bounded time.
async fn first_checks(table: &RoutingTable) {
    let all_checked = async {
        while table
            .instances()
            .any(|(_, pool, instance)| pool.check.is_some() && !instance.status.health().checked())
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(FIRST_CHECKS, all_checked).await.is_err() {
        tracing::info!("some instances have not been checked yet; serving with those that have");
    }
}

/// Reloads when told to (SIGHUP), and returns when told to end.
async fn wait_for_the_end(configuration: &Arc<Configuration>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => {
                let configuration = Arc::clone(configuration);
                // Checks go on meanwhile, and a signal to end is still heard.
                drop(tokio::task::spawn_blocking(move || configuration.reload_and_log()));
            }
        }
    }
    Ok(())
}

/// Ends the workers. A second signal ends them at once.
fn end(runtime: &Runtime, workers: Arc<Workers>, grace: Duration) -> Result<()> {
    tracing::info!("ending: no new connections; relayed ones get {grace:?}, handed-off ones go on");
    runtime.block_on(async {
        let stopped = tokio::task::spawn_blocking(move || workers.stop(grace));
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            stopped = stopped => stopped.context("the workers did not end in order"),
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    })
}

/// Tells systemd, if it has started us.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
