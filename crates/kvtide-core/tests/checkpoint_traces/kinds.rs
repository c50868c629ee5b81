//! The kinds of traces.

use super::dice::{Dice, Zipf, mix};
use super::trace::{Text, Trace};

/// The size of a trace, and its seed.
#[derive(Clone, Copy)]
pub struct Shape {
    pub requests: usize,
    pub block_size: u32,
    pub seed: u64,
}

/// Chats with one of 50 system prompts and a growing history. One turn in 20 is asked again, because the answer was
/// not liked.
pub fn chats(shape: Shape) -> Trace {
    let (mut trace, mut dice) = (Trace::new(shape.block_size), Dice::new(shape.seed));
    let (systems, lengths) = (Zipf::new(50, 1.0), lengths(&mut dice, 50, (150, 3000)));
    // The text before the last message of the user, that message, and the text behind the answer.
    let mut chats: Vec<(Text, (u64, u32), Text)> = Vec::new();
    while trace.requests.len() < shape.requests {
        let (mut before, mut user) = (trace.empty(), (trace.new_message(), dice.length(15, 400)));
        let is_new = chats.len() < 200 || dice.once_in(0.12);
        if is_new {
            let system = systems.draw(&mut dice);
            trace.say(&mut before, system, lengths[system as usize]);
        } else {
            let (earlier, last, behind) = chats.remove(dice.recent(chats.len(), 3));
            (before, user) = if dice.once_in(0.05) { (earlier, last) } else { (behind, user) };
        }
        let mut text = before;
        trace.say(&mut text, user.0, user.1);
        trace.ask(&mut text, dice.length(30, 800), None, Vec::new());
        if (is_new || !dice.once_in(0.1)) && text.length() < 16_000 {
            chats.push((before, user, text));
        }
        if chats.len() > 3000 {
            chats.remove(0);
        }
    }
    trace.written()
}

/// Questions about one or two of 4,000 documents, some asked about far more often than others. If `names` is true, the
/// caller names the ends of documents.
pub fn documents(shape: Shape, names: bool) -> Trace {
    let (mut trace, mut dice) = (Trace::new(shape.block_size), Dice::new(shape.seed));
    let (documents, lengths) = (Zipf::new(4000, 1.0), lengths(&mut dice, 4000, (200, 4000)));
    while trace.requests.len() < shape.requests {
        let (mut text, mut named) = (trace.empty(), Vec::new());
        let system = dice.below(4);
        trace.say(&mut text, 10_000 + system, 200 + 150 * system as u32);
        for _ in 0..1 + dice.below(2) {
            let document = documents.draw(&mut dice);
            trace.say(&mut text, document, lengths[document as usize]);
            named.push(text.length());
        }
        let question = trace.new_message();
        trace.say(&mut text, question, dice.length(10, 100));
        trace.ask(&mut text, dice.length(20, 300), None, if names { named } else { Vec::new() });
    }
    trace.written()
}

/// Agents with one of 12 system prompts with tools. In one step of seven, an agent edits its history: it cuts it at the
/// end of a message and continues from there.
pub fn agents(shape: Shape) -> Trace {
    let (mut trace, mut dice) = (Trace::new(shape.block_size), Dice::new(shape.seed));
    let (systems, lengths) = (Zipf::new(12, 0.8), lengths(&mut dice, 12, (1500, 8000)));
    // The ends of the messages of each agent.
    let mut agents: Vec<Vec<Text>> = Vec::new();
    while trace.requests.len() < shape.requests {
        let is_new = agents.len() < 100 || dice.once_in(0.05);
        let mut ends = if is_new {
            let (mut text, system) = (trace.empty(), systems.draw(&mut dice));
            trace.say(&mut text, system, lengths[system as usize]);
            vec![text]
        } else {
            let mut ends = agents.remove(dice.recent(agents.len(), 2));
            if dice.once_in(0.15) {
                ends.truncate(1 + dice.recent(ends.len() - 1, 2));
            }
            ends
        };
        let mut text = ends[ends.len() - 1];
        let message = trace.new_message();
        trace.say(&mut text, message, dice.length(40, 3000));
        ends.push(text);
        trace.ask(&mut text, dice.length(20, 400), None, Vec::new());
        ends.push(text);
        if is_new || (!dice.once_in(0.04) && text.length() < 32_000) {
            agents.push(ends);
        }
        if agents.len() > 1000 {
            agents.remove(0);
        }
    }
    trace.written()
}

/// Chats of 400 tenants, each with a salt of its own from the end of the system prompt on, which all share, and with
/// instructions behind it.
pub fn tenants(shape: Shape) -> Trace {
    const SHARED: u32 = 1203;
    let (mut trace, mut dice) = (Trace::new(shape.block_size), Dice::new(shape.seed));
    let (tenants, lengths) = (Zipf::new(400, 0.9), lengths(&mut dice, 400, (100, 1500)));
    let mut chats: Vec<Text> = Vec::new();
    while trace.requests.len() < shape.requests {
        let mut text = if chats.len() < 300 || dice.once_in(0.4) {
            let (mut text, tenant) = (trace.empty(), tenants.draw(&mut dice));
            trace.say(&mut text, 0, SHARED);
            // Tokens under a salt are other tokens.
            trace.say(&mut text, mix(tenant, 3), lengths[tenant as usize]);
            text
        } else {
            chats.remove(dice.recent(chats.len(), 2))
        };
        let message = trace.new_message();
        trace.say(&mut text, message, dice.length(20, 500));
        trace.ask(&mut text, dice.length(20, 500), Some(SHARED), Vec::new());
        if !dice.once_in(0.3) {
            chats.push(text);
        }
        if chats.len() > 2000 {
            chats.remove(0);
        }
    }
    trace.written()
}

fn lengths(dice: &mut Dice, texts: u32, (least, most): (u32, u32)) -> Vec<u32> {
    (0..texts).map(|_| dice.length(least, most)).collect()
}
