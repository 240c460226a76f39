//! A changed config, and a changed machine.

use std::{path::Path, time::Instant};

use super::{
    Agent, AgentError, Mover,
    params::{cadence_of, heat_params, migrate_params, rule_of, speeds_of, tier_nodes},
};
use crate::{
    config::{Config, MissingNode},
    host::{Host, HostError},
    units::{NodeId, NodeSet},
};

impl Agent {
    /// Goes on with another config. Gives the keys whose change waits for the next start.
    ///
    /// # Errors
    /// The host cannot be read, or the config names nodes that cannot be tiers here: then nothing has changed.
    pub fn reconfigure(&mut self, config: Config) -> Result<Vec<&'static str>, AgentError> {
        let host = read_host(&self.root, &config)?;
        let old = &self.config;
        let later = [
            ("damon.ops", old.damon.ops != config.damon.ops),
            ("damon.max_regions", old.damon.max_regions != config.damon.max_regions),
            ("migrate.actuator", old.wants_damos() != config.wants_damos()),
            ("prometheus.listen", old.metrics != config.metrics),
        ];
        self.rule = rule_of(&config);
        self.heat.set_params(heat_params(&config));
        if old.damon != config.damon {
            self.cadence = cadence_of(&config, Instant::now());
        }
        let other_moves = old.migrate != config.migrate;
        self.memory.set_file_pages(config.migrate.file_pages);
        self.config = config;
        self.avoided = NodeSet::default();
        if other_moves {
            self.halt();
        }
        self.adopt(host)?;
        Ok(later.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect())
    }

    /// Plans nothing to or from a node, until the config is read again.
    pub fn avoid(&mut self, node: NodeId) {
        self.avoided.0.insert(node);
    }

    /// Ends the moves under way and takes in what came of them.
    pub(super) fn halt(&mut self) {
        if let Some(mover) = &mut self.mover {
            mover.halt();
        }
        self.settle(Instant::now());
        self.mover = None;
        self.jobs.iter_mut().for_each(|job| job.under_way = 0);
    }

    /// The nodes are not those that were read: reads them again, and goes on with what is left.
    pub(super) fn reread_host(&mut self, why: &HostError) {
        let mut config = self.config.clone();
        config.tiers.missing_node = MissingNode::Degrade;
        let adopted = read_host(&self.root, &config).map_err(AgentError::from).and_then(|host| self.adopt(host));
        match adopted {
            Ok(()) => {
                let tiers: Vec<_> = self.host.tiers.iter().map(|tier| tier.nodes.to_string()).collect();
                tracing::warn!(%why, ?tiers, "the nodes have changed; going on with those that are there");
            }
            Err(error) => tracing::warn!(%error, %why, "no decision without knowing the nodes"),
        }
    }

    fn adopt(&mut self, host: Host) -> Result<(), AgentError> {
        let tiers = tier_nodes(&host);
        if tiers != self.tiers {
            self.memory.set_tiers(tiers.clone());
            self.tiers = tiers;
        }
        self.speeds = speeds_of(&host);
        self.host = host;
        if self.host.is_two_tier() && self.mover.is_none() {
            self.mover = Some(Mover::start(migrate_params(&self.config))?);
        }
        Ok(())
    }
}

/// The host under `root`, with the tiers that the config names; DAMON's parts are tried, not looked up.
///
/// # Errors
/// It cannot be read, or the config names nodes that cannot be tiers here.
pub fn read_host(root: &Path, config: &Config) -> Result<Host, HostError> {
    let mut host = Host::read_without_symbols(root)?;
    host.configure(config)?;
    Ok(host)
}
