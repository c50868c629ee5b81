//! Errors, and that nothing has changed after them.

use kvtide_sample::{Drafts, Error, Options, Sampler, VOCABULARY_MAX, Workspace};

fn argument(error: Error) -> &'static str {
    match error {
        Error::InvalidArgument { argument, .. } => argument,
        other => panic!("{other:?}"),
    }
}

#[test]
fn options_that_cannot_be_are_refused_by_name() {
    let refused = |options: Options| argument(Sampler::new(options, &[]).expect_err("a refusal"));
    let base = Options::default;
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.5] {
        assert_eq!(refused(Options { temperature: wrong, ..base() }), "temperature");
        assert_eq!(refused(Options { top_p: wrong, ..base() }), "topP");
        assert_eq!(refused(Options { min_p: wrong, ..base() }), "minP");
        assert_eq!(refused(Options { repetition_penalty: wrong, ..base() }), "repetitionPenalty");
    }
    assert_eq!(refused(Options { top_k: Some(0), ..base() }), "topK");
    assert_eq!(refused(Options { top_p: 0.0, ..base() }), "topP");
    assert_eq!(refused(Options { top_p: 1.5, ..base() }), "topP");
    assert_eq!(refused(Options { min_p: 1.5, ..base() }), "minP");
    assert_eq!(refused(Options { repetition_penalty: 0.0, ..base() }), "repetitionPenalty");
    assert_eq!(refused(Options { presence_penalty: f32::NAN, ..base() }), "presencePenalty");
    assert_eq!(refused(Options { frequency_penalty: f32::INFINITY, ..base() }), "frequencyPenalty");
    for bias in [vec![(1, f32::NAN)], vec![(1, f32::INFINITY)], vec![(1, 0.5), (2, 0.5), (1, 0.5)]] {
        assert_eq!(refused(Options { bias, ..base() }), "bias");
    }
}

#[test]
fn logits_that_are_no_numbers_are_refused_with_their_token() {
    let mut workspace = Workspace::default();
    for temperature in [0.0, 1.0] {
        let sampler = Sampler::new(Options { temperature, ..Options::default() }, &[]).expect("options");
        let mut sample = |logits: &[f32], mask: Option<&[u32]>| sampler.sample(logits, mask, &mut workspace);
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![1.0; 100];
            logits[70] = wrong;
            assert_eq!(sample(&logits, None), Err(Error::NotFinite { row: 0, token: Some(70) }));
            // A mask does not hide it: the model is wrong.
            assert_eq!(sample(&logits, Some(&[1, 0, 0, 0])), Err(Error::NotFinite { row: 0, token: Some(70) }));
        }
        assert_eq!(sample(&[f32::NEG_INFINITY; 5], None), Err(Error::NotFinite { row: 0, token: None }));
        assert_eq!(argument(sample(&[], None).expect_err("no logits")), "logits");
        assert_eq!(argument(sample(&[0.5; 33], Some(&[1])).expect_err("a short mask")), "allowed");
        assert_eq!(sample(&[0.5; 33], Some(&[0, 2])), Err(Error::NothingAllowed { vocabulary: 33 }));
        assert_eq!(sample(&[0.5; 33], Some(&[0, 3])).map(|sampled| sampled.token), Ok(32));
    }
}

#[test]
fn a_vocabulary_that_is_too_large_is_refused() {
    let sampler = Sampler::new(Options::default(), &[]).expect("options");
    let logits = vec![0.0; VOCABULARY_MAX as usize + 1];
    let mut workspace = Workspace::default();
    assert_eq!(argument(sampler.sample(&logits, None, &mut workspace).expect_err("too many")), "logits");
    assert!(sampler.sample(&logits[1..], None, &mut workspace).is_ok());
}

#[test]
fn a_bias_can_rule_everything_out_or_name_a_token_that_is_not_there() {
    let bias = |bias| Sampler::new(Options { bias, ..Options::default() }, &[]).expect("options");
    let mut workspace = Workspace::default();
    let none = bias(vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)]);
    assert_eq!(none.sample(&[1.0, 2.0], None, &mut workspace), Err(Error::NothingAllowed { vocabulary: 2 }));
    let beyond = bias(vec![(2, 1.0)]);
    assert_eq!(argument(beyond.sample(&[1.0, 2.0], None, &mut workspace).expect_err("no token 2")), "bias");
    let huge = bias(vec![(0, f32::MAX), (1, f32::MIN)]);
    assert_eq!(huge.sample(&[f32::MAX, f32::MIN], None, &mut workspace).map(|sampled| sampled.token), Ok(0));
}

#[test]
fn a_refused_call_changes_nothing() {
    let options = Options { frequency_penalty: 1.0, seed: 3, ..Options::default() };
    let mut sampler = Sampler::new(options, &[1, 2]).expect("options");
    let mut workspace = Workspace::default();
    sampler.push(&[0, 0, 3]);
    let logits = [0.3, 0.1, 0.2, 0.4];
    let before = sampler.sample(&logits, None, &mut workspace).expect("a token");
    for position in [0, 1, 6, u64::MAX] {
        assert_eq!(argument(sampler.truncate(position).expect_err("no such position")), "position");
    }
    let rows: [&[f32]; 2] = [&logits, &[f32::NAN; 4]];
    assert_eq!(argument(sampler.verify(&rows, &[], Drafts::Tokens, &[], &mut workspace).expect_err("rows")), "rows");
    let wrong = sampler.verify(&rows, &[1], Drafts::Tokens, &[None], &mut workspace);
    assert_eq!(argument(wrong.expect_err("masks")), "allowed");
    let wrong = sampler.verify(&rows, &[1], Drafts::Logits(&[]), &[], &mut workspace);
    assert_eq!(argument(wrong.expect_err("drafts")), "drafts");
    let wrong = sampler.verify(&rows, &[before.token], Drafts::Tokens, &[], &mut workspace);
    assert_eq!(wrong, Err(Error::NotFinite { row: 1, token: Some(0) }));
    let never: &[f32] = &[0.0, f32::NEG_INFINITY, 0.0, 0.0];
    let wrong = sampler.verify(&[&logits, &logits], &[1], Drafts::Logits(&[never]), &[], &mut workspace);
    assert_eq!(argument(wrong.expect_err("never drafted")), "drafted");
    assert_eq!(sampler.position(), 5);
    assert_eq!(sampler.sample(&logits, None, &mut workspace), Ok(before));
}
